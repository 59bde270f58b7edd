"""What was published last, and what each of the last publishes changed.

A delta starts from what a receiver has acknowledged. So the bytes on the wire of the last publish
are kept (half the memory of float32 weights, where the wire is bfloat16), by whoever holds the
weights: one process all of them, each rank of several its own part. The next publish is compared
with them and written over them. What it changed is encoded once for all receivers, and kept for
those that missed it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from antiphon.clients.digest import weights_digest
from antiphon.clients.types import TensorSpec
from antiphon.learner.weights.wire_weights import WireWeights
from antiphon.services.common.changes import best_exponent

MOST_CHANGED = 1 / 8
"""Where a larger share of the elements changed, a delta saves little: it is not even tried."""

KEPT_STEPS = 8
"""How many publishes back a receiver may be and still be brought on by deltas."""


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


class Published:
    """One agent's published weights, and the last steps to them.

    Args:
        weights: Whose they are; asked to keep what is published.

    Attributes:
        specs: The tensors, sorted by name; empty before the first `take`.
        digest: Of them; empty before the first `take`.
    """

    def __init__(self, weights: WireWeights) -> None:
        self._weights = weights
        self._steps: list[Step] = []
        self.specs: tuple[TensorSpec, ...] = ()
        self.digest = b""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(spec.nbytes for spec in self.specs)

    def step_from(self, digest: bytes) -> Step | None:
        """The last step that starts from these weights; None where it is not known or not small.

        Weights may come back: from the last such step on no later one leads to them again, so
        following steps always ends at the present weights.
        """
        return next((s for s in reversed(self._steps) if s.base_digest == digest), None)

    def take(self, shapes: Mapping[str, tuple[int, ...]], version: int) -> None:
        """Take the present weights as this version; the steps to it stay known.

        Args:
            shapes: Of the tensors by name, sorted; those of the times before.
            version: Of these weights.
        """
        base, self.digest = self.digest, b""  # Until it is whole again it is no base.
        exponent = self._exponent() if base and any(map(math.prod, shapes.values())) else None
        kept = self._weights.keep(exponent)
        self.specs = tuple(
            TensorSpec(name, self._weights.dtype, shape, one.checksum)
            for (name, shape), one in zip(shapes.items(), kept, strict=True)
        )
        self.digest = weights_digest(self.specs)
        if exponent is None:
            self._steps.clear()
        elif base != self.digest:
            changes = tuple(one.change for one in kept)
            self._steps.append(Step(base, version, self.digest, self.specs, changes))
        self._forget_steps()

    def _exponent(self) -> int | None:
        """How to encode the change, judged by a sample; None where too much of it changed."""
        base, new = self._weights.sample()
        if np.count_nonzero(base != new) > MOST_CHANGED * len(base):
            return None
        return best_exponent(base, new)

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
