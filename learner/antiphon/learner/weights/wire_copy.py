"""The weights as they were published last, and what each publish changed.

A delta starts from what a receiver has acknowledged. So the bytes on the wire of the last publish
are kept (half the memory of float32 weights, where the wire is bfloat16); the next one is compared
with them and written over them, block by block, in one pass over the weights. What it changed is
encoded once for all receivers, and kept for those that missed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import xxhash
from torch import Tensor

from antiphon.clients.digest import weights_digest
from antiphon.clients.types import TensorDtype, TensorSpec
from antiphon.services.common.changes import (
    BLOCK_ELEMENTS,
    ChangeEncoder,
    Patterns,
    best_exponent,
    blocks,
    patterns,
)
from antiphon.services.common.tensors import TORCH_DTYPES, to_bytes

MOST_CHANGED = 1 / 8
"""Where a larger share of the elements changed, a delta saves little: it is not even tried."""

KEPT_STEPS = 8
"""How many publishes back a receiver may be and still be brought on by deltas."""

_SAMPLE = 1 << 18
_WORTH_THREADS = 1 << 22

T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """What one publish changed: the encoded change of each tensor, empty where there is none."""

    base_digest: bytes
    version: int
    digest: bytes
    specs: tuple[TensorSpec, ...]
    changes: tuple[bytes, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all changes."""
        return sum(map(len, self.changes))


class WireCopy:
    """The bytes on the wire of one agent's published weights, and the last steps to them.

    Args:
        dtype: Number format on the wire.

    Attributes:
        specs: The tensors, sorted by name; empty before the first `update`.
        digest: Of them; empty before the first `update`.
    """

    def __init__(self, dtype: TensorDtype) -> None:
        self._dtype = dtype
        self._held: dict[str, Patterns] = {}
        self._steps: list[Step] = []
        self.specs: tuple[TensorSpec, ...] = ()
        self.digest = b""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(held.nbytes for held in self._held.values())

    def buffers(self) -> tuple[memoryview, ...]:
        """The bytes of each tensor, until the next `update`."""
        return tuple(self._held[spec.name].data.cast("B") for spec in self.specs)

    def step_from(self, digest: bytes) -> Step | None:
        """The last step that starts from these weights; None where it is not known or not small.

        Weights may come back: from the last such step on no later one leads to them again, so
        following steps always ends at the present weights.
        """
        return next((s for s in reversed(self._steps) if s.base_digest == digest), None)

    def update(self, tensors: Mapping[str, Tensor], version: int) -> None:
        """Take the present weights as this version; the steps to it stay known.

        Args:
            tensors: By name, in the order and shapes of the updates before.
            version: Of these weights.
        """
        ordered = dict(sorted(tensors.items()))
        base, self.digest = self.digest, b""  # Until it is whole again it is no base.
        exponent = self._exponent(ordered) if base else None
        if exponent is None:
            self._steps.clear()
            checksums = _each(ordered, self._rewrite)
            changes: list[bytes] = []
        else:
            advanced = _each(ordered, lambda name, tensor: self._advance(name, tensor, exponent))
            checksums = [checksum for checksum, _ in advanced]
            changes = [change for _, change in advanced]
        self.specs = tuple(
            TensorSpec(name, self._dtype, tuple(tensor.shape), checksum)
            for (name, tensor), checksum in zip(ordered.items(), checksums, strict=True)
        )
        self.digest = weights_digest(self.specs)
        if changes and base != self.digest:
            self._steps.append(Step(base, version, self.digest, self.specs, tuple(changes)))
        self._forget_steps()

    def _forget_steps(self) -> None:
        """Keep no more of the last steps than together are smaller than all tensors."""
        kept: list[Step] = []
        room = self.nbytes
        for step in self._steps[: -KEPT_STEPS - 1 : -1]:
            room -= step.nbytes
            if room <= 0:
                break
            kept.insert(0, step)
        self._steps = kept

    def _exponent(self, tensors: Mapping[str, Tensor]) -> int | None:
        """How to encode the change, judged by a sample; None where too much of it changed."""
        stride = max(1, sum(tensor.numel() for tensor in tensors.values()) // _SAMPLE)
        base = np.concatenate([self._held[name][::stride] for name in tensors])
        new = np.concatenate(
            [
                patterns(to_bytes(tensor.detach().reshape(-1)[::stride], self._dtype), self._dtype)
                for tensor in tensors.values()
            ]
        )
        if np.count_nonzero(base != new) > MOST_CHANGED * len(base):
            return None
        return best_exponent(base, new)

    def _advance(self, name: str, tensor: Tensor, exponent: int) -> tuple[bytes, bytes]:
        """Bring one held tensor to its present bytes; checksum and encoded change."""
        held, encoder, checksum = self._held[name], ChangeEncoder(exponent), xxhash.xxh3_128()
        for block, new in _wire_blocks(tensor, self._dtype):
            checksum.update(new.data)
            moved = encoder.add(held[block], new)
            held[block][moved] = new[moved]
        return checksum.digest(), encoder.finish()

    def _rewrite(self, name: str, tensor: Tensor) -> bytes:
        """Hold all of a tensor's present bytes; their checksum."""
        if name not in self._held:
            room = torch.empty(tensor.numel() * self._dtype.size, dtype=torch.uint8)
            self._held[name] = patterns(room.numpy().data, self._dtype)
        held, checksum = self._held[name], xxhash.xxh3_128()
        for block, new in _wire_blocks(tensor, self._dtype):
            checksum.update(new.data)
            held[block] = new
        return checksum.digest()


def _wire_blocks(tensor: Tensor, dtype: TensorDtype) -> Iterator[tuple[slice, Patterns]]:
    """A tensor's elements as on the wire by blocks; each holds until the next is asked for."""
    wire = TORCH_DTYPES[dtype]
    flat = tensor.detach().reshape(-1)
    if flat.device.type != "cpu":
        flat = flat.to(wire).cpu()
    if flat.dtype == wire:
        whole = patterns(to_bytes(flat, dtype), dtype)
        yield from ((block, whole[block]) for block in blocks(len(whole)))
        return
    room = torch.empty(min(BLOCK_ELEMENTS, flat.numel()), dtype=wire)
    converted = patterns(to_bytes(room, dtype), dtype)
    for block in blocks(flat.numel()):
        size = block.stop - block.start
        room[:size].copy_(flat[block])
        yield block, converted[:size]


def _each(tensors: Mapping[str, Tensor], work: Callable[[str, Tensor], T]) -> list[T]:
    """What `work` gives for each tensor, in order; the largest are begun first, side by side."""
    elements = sum(tensor.numel() for tensor in tensors.values())
    workers = torch.get_num_threads() if elements >= _WORTH_THREADS else 1
    if workers == 1:
        return [work(name, tensor) for name, tensor in tensors.items()]
    with ThreadPoolExecutor(workers, "encode-weights") as pool:
        begun = {
            name: pool.submit(work, name, tensors[name])
            for name in sorted(tensors, key=lambda name: -tensors[name].numel())
        }
        return [begun[name].result() for name in tensors]
