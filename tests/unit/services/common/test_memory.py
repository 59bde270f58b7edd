"""Memory goes back to the system when what it held is dropped."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

import pytest
import torch

from antiphon.services.common.memory import give_back_freed_memory, mapped, mapped_like

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


def test_rooms_lie_side_by_side_and_go_back_with_the_last_of_them() -> None:
    before = resident()
    rooms = mapped([0, 3, 64 * MEGABYTE, 5])
    assert [room.nbytes for room in rooms] == [0, 3, 64 * MEGABYTE, 5]
    assert resident() - before < 32 * MEGABYTE  # nothing before it is written to
    rooms[1][:], rooms[3][:] = b"abc", b"defgh"
    block = bytes([7]) * MEGABYTE  # a larger one could stay in a heap that was trimmed before
    for start in range(0, rooms[2].nbytes, MEGABYTE):
        rooms[2][start : start + MEGABYTE] = block
    assert resident() - before >= 64 * MEGABYTE
    assert (bytes(rooms[1]), bytes(rooms[3]), rooms[2][-1]) == (b"abc", b"defgh", 7)
    del rooms
    assert resident() - before < 32 * MEGABYTE


def test_tensors_in_a_mapping_keep_shape_format_and_strides() -> None:
    likes = [
        torch.zeros(3, 5, dtype=torch.bfloat16),
        torch.zeros(7, 4).t(),
        torch.tensor(2.0),
        torch.zeros(0, 4),
    ]
    tensors = mapped_like(likes)
    for tensor, like in zip(tensors, likes, strict=True):
        assert (tensor.shape, tensor.dtype) == (like.shape, like.dtype)
        assert tensor.stride() == like.stride()
        tensor.fill_(1)
    assert all(torch.equal(t, torch.ones_like(t)) for t in tensors)
