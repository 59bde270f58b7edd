"""Memory that was freed goes back to the system."""

from __future__ import annotations

import sys

import pytest
from tests.support.processes import run

CODE = """
import psutil
from antiphon.services.common import allocator
allocator.{function}()
rss = psutil.Process().memory_info
for _ in range(3):
    blocks = [bytes(3 << 20) for _ in range(64)]
    small = [bytes(1000) for _ in range(1000)]
    del blocks
    kept = small
before = rss().rss
blocks = [bytearray(3 << 20) for _ in range(64)]
for block in blocks:
    block[::4096] = b"x" * len(block[::4096])
full = rss().rss
late = [bytes(1000) for _ in range(20000)]
del blocks, block
print((full - before) >> 20, (rss().rss - before) >> 20)
"""


@pytest.mark.parametrize("function", ["keep_no_freed_blocks", "reuse_blocks_of_a_step"])
def test_large_blocks_go_back_to_the_system_when_they_are_freed(function: str) -> None:
    code = CODE.format(function=function)
    full, left = map(int, run([sys.executable, "-c", code]).split())
    assert full > 150
    assert left < 48
