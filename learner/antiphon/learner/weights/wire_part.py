"""The bytes on the wire of what one process holds of an agent's weights, as published last."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from antiphon.clients.types import TensorDtype
from antiphon.services.common.changes import (
    BLOCK_ELEMENTS,
    ChangeEncoder,
    Patterns,
    blocks,
    patterns,
)
from antiphon.services.common.tensors import TORCH_DTYPES, to_bytes

Seen = Callable[[memoryview], object]
"""Is shown a tensor's present bytes, block by block in order."""


class WirePart:
    """Keeps tensors as they are on the wire, all of them or this process's rows.

    Present tensors are compared with what is kept and written over it block by block, in one pass.

    Args:
        dtype: Number format on the wire.
    """

    def __init__(self, dtype: TensorDtype) -> None:
        self._dtype = dtype
        self._held: dict[str, Patterns] = {}

    def kept(self, name: str) -> Patterns:
        """A tensor as it was kept, until it is kept again."""
        return self._held[name]

    def sample(self, name: str, tensor: Tensor, stride: int) -> tuple[Patterns, Patterns]:
        """Every `stride`-th element of a tensor: as it was kept, and as it is."""
        some = tensor.detach().reshape(-1)[::stride]
        # One element alone would keep the stride, and could not be looked at as bytes.
        present = to_bytes(some.clone(memory_format=torch.contiguous_format), self._dtype)
        return np.ascontiguousarray(self._held[name][::stride]), patterns(present, self._dtype)

    def keep(self, name: str, tensor: Tensor, seen: Seen = lambda _: None) -> None:
        """Keep a tensor as it is."""
        if name not in self._held:
            room = torch.empty(tensor.numel() * self._dtype.size, dtype=torch.uint8)
            self._held[name] = patterns(room.numpy().data, self._dtype)
        held = self._held[name]
        for block, new in self._present(tensor):
            seen(new.data)
            held[block] = new

    def advance(
        self, name: str, tensor: Tensor, exponent: int, seen: Seen = lambda _: None
    ) -> ChangeEncoder:
        """Keep a tensor as it is; what changed in it since it was kept, by this exponent."""
        held, encoder = self._held[name], ChangeEncoder(exponent)
        for block, new in self._present(tensor):
            seen(new.data)
            moved, after = encoder.add(held[block], new)
            held[block][moved] = after
        return encoder

    def _present(self, tensor: Tensor) -> Iterator[tuple[slice, Patterns]]:
        """A tensor's elements by blocks; each block holds until the next one is asked for."""
        wire = TORCH_DTYPES[self._dtype]
        flat = tensor.detach().reshape(-1)
        if flat.device.type != "cpu":
            flat = flat.to(wire).cpu()
        if flat.dtype == wire:
            whole = patterns(to_bytes(flat, self._dtype), self._dtype)
            yield from ((block, whole[block]) for block in blocks(len(whole)))
            return
        room = torch.empty(min(BLOCK_ELEMENTS, flat.numel()), dtype=wire)
        converted = patterns(to_bytes(room, self._dtype), self._dtype)
        for block in blocks(flat.numel()):
            size = block.stop - block.start
            room[:size].copy_(flat[block])
            yield block, converted[:size]
