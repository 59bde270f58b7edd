from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

import pytest

from antiphon.learner.policy.freed_memory import give_back_freed_memory

MEGABYTE = 2**20


def resident() -> int:
    """Bytes of this process in main memory."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no glibc")
def test_what_a_thread_freed_goes_back_to_the_system() -> None:
    """Blocks of 16 KB lie in the thread's heap; every fourth is kept, so its end stays in use."""
    kept: list[bytearray] = []

    def fill() -> None:
        blocks = [bytearray(16_384) for _ in range(64 * MEGABYTE // 16_384)]
        kept.extend(blocks[::4])

    thread = threading.Thread(target=fill)
    thread.start()
    thread.join()
    before = resident()
    give_back_freed_memory()
    assert before - resident() > 24 * MEGABYTE
    assert len(kept) == 1024
