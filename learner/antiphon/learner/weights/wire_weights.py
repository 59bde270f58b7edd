"""An agent's weights as a publisher asks for them: as they are, and as they were published last.

One process that holds a policy answers for itself (`OwnWeights`); of a policy that is parted over
ranks each keeps its own part, and rank 0 asks them tensor by tensor
(`antiphon.learner.distributed.weights`). Names, shapes and bytes are those on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
import xxhash
from torch import Tensor

from antiphon.clients.types import TensorDtype
from antiphon.learner.weights.wire_part import WirePart
from antiphon.services.common.changes import Patterns
from antiphon.services.common.lora import adapter_dtype
from antiphon.services.common.tensors import to_bytes

SAMPLE = 1 << 18
"""About how many elements are looked at, to judge how much has changed."""

_WORTH_THREADS = 1 << 22

T = TypeVar("T")


class Kept(NamedTuple):
    """Of a tensor that was kept: the checksum of its bytes, and its encoded change, if any."""

    checksum: bytes
    change: bytes


class WireWeights(Protocol):
    """The weights of one agent. Calls block, and come one at a time but for those of `kept`."""

    @property
    def dtype(self) -> TensorDtype:
        """Number format of weights on the wire."""
        ...

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Names, sorted, and shapes of what is to be sent; asked for before the rest."""
        ...

    def present(self, name: str) -> memoryview:
        """A tensor's bytes as they are; they may be live."""
        ...

    def keep(self, exponent: int | None) -> list[Kept]:
        """Keep all tensors as they are, in order of name.

        Args:
            exponent: Encodes what changed since they were kept; None to keep them anew.
        """
        ...

    def sample(self) -> tuple[Patterns, Patterns]:
        """Some elements: as they were kept, and as they are."""
        ...

    def kept(self, name: str) -> memoryview:
        """A tensor's bytes as they were kept, until all are kept again."""
        ...


class OwnWeights:
    """Weights that this process holds whole.

    Args:
        tensors: By name, sharing the model's memory; looked at anew whenever shapes are.
        dtype: Number format on the wire.
    """

    def __init__(self, tensors: Callable[[], Mapping[str, Tensor]], dtype: TensorDtype) -> None:
        self._look, self._dtype = tensors, dtype
        self._tensors: dict[str, Tensor] = {}
        self._part = WirePart(dtype)

    @property
    def dtype(self) -> TensorDtype:
        """As in `WireWeights`."""
        return self._dtype

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """As in `WireWeights`."""
        self._tensors = dict(sorted(self._look().items()))
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def present(self, name: str) -> memoryview:
        """As in `WireWeights`."""
        return to_bytes(self._tensors[name], adapter_dtype(name, self._dtype))

    def keep(self, exponent: int | None) -> list[Kept]:
        """As in `WireWeights`: each tensor in one pass, several of them side by side."""
        return _each(self._tensors, lambda name, tensor: self._keep(name, tensor, exponent))

    def sample(self) -> tuple[Patterns, Patterns]:
        """As in `WireWeights`."""
        stride = sample_stride(tensor.numel() for tensor in self._tensors.values())
        pairs = [self._part.sample(name, t, stride) for name, t in self._tensors.items()]
        kept, present = zip(*pairs, strict=True)
        return np.concatenate(kept), np.concatenate(present)

    def kept(self, name: str) -> memoryview:
        """As in `WireWeights`."""
        return self._part.kept(name).data.cast("B")

    def _keep(self, name: str, tensor: Tensor, exponent: int | None) -> Kept:
        checksum = xxhash.xxh3_128()
        if exponent is None:
            self._part.keep(name, tensor, checksum.update)
            return Kept(checksum.digest(), b"")
        encoder = self._part.advance(name, tensor, exponent, checksum.update)
        return Kept(checksum.digest(), encoder.finish())


def sample_stride(sizes: Iterable[int]) -> int:
    """Every which element of these tensors makes a sample."""
    return max(1, sum(sizes) // SAMPLE)


def _each(tensors: Mapping[str, Tensor], work: Callable[[str, Tensor], T]) -> list[T]:
    """What `work` gives for each tensor, in order; the largest are begun first, side by side."""
    elements = sum(tensor.numel() for tensor in tensors.values())
    workers = torch.get_num_threads() if elements >= _WORTH_THREADS else 1
    if workers == 1:
        return [work(name, tensor) for name, tensor in tensors.items()]
    # One thread each: torch would wake all of them for every block.
    with ThreadPoolExecutor(workers, "encode-weights", torch.set_num_threads, (1,)) as pool:
        begun = {
            name: pool.submit(work, name, tensors[name])
            for name in sorted(tensors, key=lambda name: -tensors[name].numel())
        }
        done = [begun[name].result() for name in tensors]
    torch.set_num_threads(workers)  # For threads that are made later.
    return done
