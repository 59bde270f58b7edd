"""Memory for weights that the system gets back when they are dropped, and back what was freed.

glibc keeps freed blocks below 32 MiB, the size of nearly every tensor of a model, in the heaps of
the threads that made them. Where weights come and go as a whole that is a copy of the model that
nobody else on the machine can have.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from antiphon.services.common.allocator import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, glibc

_ALIGNED = 64


def mapped(sizes: Iterable[int]) -> list[memoryview]:
    """Rooms of so many bytes side by side in one mapping, which ends with the last of them.

    Memory is 0, and is taken when it is written to, in large pages where the system has them: that
    is several times faster than page by page.
    """
    sizes = list(sizes)
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += -(-size // _ALIGNED) * _ALIGNED
    if end == 0:
        return [memoryview(bytearray()) for _ in sizes]
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if sys.platform != "win32" else {}
    mapping = mmap.mmap(-1, end, **private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = memoryview(mapping)
    return [whole[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def mapped_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of zeros on the CPU, like the given ones, side by side in one mapping.

    Dense strides are kept: what lies column after column does so again.
    """
    rooms = mapped(tensor.numel() * tensor.element_size() for tensor in tensors)
    return [_in_room(room, tensor) for room, tensor in zip(rooms, tensors, strict=True)]


def _in_room(room: memoryview, like: Tensor) -> Tensor:
    strides = torch.empty_like(like, device="meta", requires_grad=False).stride()
    if not room.nbytes:
        return torch.zeros(like.shape, dtype=like.dtype)
    return torch.frombuffer(room, dtype=like.dtype).as_strided(like.shape, strides)


def give_back_freed_memory() -> None:
    """Hand freed memory back to the system, where the C library is glibc; else do nothing."""
    glibc("malloc_trim", 0)


def reuse_freed_memory() -> None:
    """Keep what is freed for what comes next, where the C library is glibc; else do nothing.

    Left alone it takes blocks of a message's or a step's size from the system again and again, page
    by page. Whoever calls this calls `give_back_freed_memory` when there is nothing to do.
    """
    glibc("mallopt", M_MMAP_THRESHOLD, 32 << 20)
    glibc("mallopt", M_TRIM_THRESHOLD, 256 << 20)
