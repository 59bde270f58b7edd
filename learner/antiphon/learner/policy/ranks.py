"""The processes that train one policy together; alone here, many in `antiphon.learner.distributed`.

A policy takes its steps as if it were alone and asks its ranks at the few places where more of them
meet: which completions are its own, what all ranks together come to, and which part of a tensor it
holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from antiphon.clients.types import TensorDtype
from antiphon.learner.arithmetic.loss import LossStats
from antiphon.learner.policy.micro_batches import Row
from antiphon.learner.policy.number_formats import to_compute_dtype


class Ranks:
    """One process that holds all of a policy."""

    def prepare(
        self, model: nn.Module, sent: Mapping[str, Tensor], wire: TensorDtype, compute: str
    ) -> None:
        """Have the model compute with its weights as they are on the wire (`to_compute_dtype`)."""
        to_compute_dtype(model, sent, wire, compute)

    def share(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The completions of a step that this process computes."""
        return rows

    def rounds(self, micro_batches: int) -> int:
        """Forwards of this step: the most micro-batches that any process has."""
        return micro_batches

    def total(self, stats: LossStats) -> LossStats:
        """The statistics of all processes together."""
        return stats

    def sum(self, value: float) -> float:
        """The sum of all processes' values."""
        return value

    def local(self, tensor: Tensor) -> Tensor:
        """The part of a parameter, or of its gradient, that this process holds; shares memory."""
        return tensor

    def whole(self, part: Tensor, parameter: Tensor) -> Tensor:
        """What a checkpoint holds of a tensor that is parted as `parameter` is."""
        del parameter
        return part
