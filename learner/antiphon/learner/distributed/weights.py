"""The weights of a sharded policy as its publisher asks rank 0 for them.

Each rank keeps its own part of what was published, compares with it at the next publish, and hands
in what changed. The bytes of a tensor pass through rank 0 one tensor at a time, for its checksum
and to whoever is sent all, and are not kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import xxhash
from torch import Tensor

from antiphon.clients.types import TensorDtype
from antiphon.learner.distributed.ensemble import Ensemble
from antiphon.learner.weights.wire_weights import Kept, sample_stride
from antiphon.services.common.changes import ChangeEncoder, ChangePart, Patterns, patterns
from antiphon.services.common.lora import adapter_dtype

Bytes = npt.NDArray[np.uint8]


class RankedWeights:
    """`WireWeights` of a policy that ranks hold in parts.

    Args:
        ensemble: The ranks.
        agent: Whose policy it is.
        shapes: Of the tensors on the wire, by name.
        dtype: Their number format.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        agent: int,
        shapes: Mapping[str, tuple[int, ...]],
        dtype: TensorDtype,
    ) -> None:
        self._ensemble, self._agent, self._dtype = ensemble, agent, dtype
        self._shapes = dict(sorted(shapes.items()))
        self._read: WeakValueDictionary[str, Bytes] = WeakValueDictionary()
        """What somebody is being sent at the moment: replicas that are sent all share it."""

    @property
    def dtype(self) -> TensorDtype:
        """As in `WireWeights`."""
        return self._dtype

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """As in `WireWeights`."""
        return self._shapes

    def present(self, name: str) -> memoryview:
        """As in `WireWeights`, gathered."""
        dtype = adapter_dtype(name, self._dtype).value
        return self._collected("tensor", tensor=name, of="wire", dtype=dtype)[0].data

    def keep(self, exponent: int | None) -> list[Kept]:
        """As in `WireWeights`: each rank keeps its part."""
        self._read.clear()
        each = self._ensemble.collect_each(
            "publish", len(self._shapes), agent=self._agent, exponent=exponent
        )
        return [self._kept_by_all(np.split(*_parts(*one)), exponent) for one in each]

    def sample(self) -> tuple[Patterns, Patterns]:
        """As in `WireWeights`: of each rank's part."""
        stride = sample_stride(map(math.prod, self._shapes.values()))
        data, ends = self._collected("sample", stride=stride)
        pairs = [patterns(part.data, self._dtype).reshape(2, -1) for part in np.split(data, ends)]
        kept, present = np.concatenate(pairs, axis=1)
        return kept, present

    def kept(self, name: str) -> memoryview:
        """As in `WireWeights`, gathered: waits until the ranks have done what they are at."""
        data = self._read.get(name)
        if data is None:
            data, _ = self._collected("published", tensor=name)
            self._read[name] = data
        return data.data

    def _kept_by_all(self, parts: Iterable[Bytes], exponent: int | None) -> Kept:
        """Of one tensor, from what each rank handed in of it."""
        checksum = xxhash.xxh3_128()
        encoder = None if exponent is None else ChangeEncoder(exponent)
        for part in parts:
            told = part
            if encoder is not None and len(part):
                change = ChangePart.from_bytes(part.data, self._dtype)
                encoder.append(change)
                told = part[change.nbytes :]
            checksum.update(told.data)
        return Kept(checksum.digest(), b"" if encoder is None else encoder.finish())

    def _collected(self, do: str, **arguments: Any) -> tuple[Bytes, list[int]]:
        """What the ranks hand in, and where the part of each but the last ends."""
        return _parts(*self._ensemble.collect(do, agent=self._agent, **arguments))


def _parts(data: Tensor, sizes: Sequence[int]) -> tuple[Bytes, list[int]]:
    return data.numpy(), np.cumsum(sizes)[:-1].tolist()
