"""The ranks of a sharded policy, as a `Policy` asks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from antiphon.clients.types import TensorDtype
from antiphon.learner.arithmetic.loss import LossStats
from antiphon.learner.distributed.balance import balanced
from antiphon.learner.distributed.shards import held_part
from antiphon.learner.policy.micro_batches import Row
from antiphon.learner.policy.ranks import Ranks

_MAXIMA = ("ratio_max", "gap_max")


class MeshRanks(Ranks):
    """The ranks of a mesh, of which this is one.

    Args:
        mesh: Over which the policy's model is parted.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh, self._group = mesh, mesh.get_group()

    def prepare(
        self, model: nn.Module, sent: Mapping[str, Tensor], wire: TensorDtype, compute: str
    ) -> None:
        """Nothing: a sharded model was filled with such weights (`shards.sharded_model`)."""

    def share(self, rows: Sequence[Row]) -> Sequence[Row]:
        """About as many tokens as every other rank has."""
        return balanced(rows, self._mesh.size())[self._mesh.get_local_rank()]

    def rounds(self, micro_batches: int) -> int:
        """The most micro-batches of any rank: layers are put together by all ranks at once."""
        return int(self._reduced([micro_batches], dist.ReduceOp.MAX)[0])

    def total(self, stats: LossStats) -> LossStats:
        """Sums of sums, maxima of maxima."""
        sums = [f.name for f in fields(stats) if f.name not in _MAXIMA]
        summed = self._reduced([getattr(stats, name) for name in sums], dist.ReduceOp.SUM)
        most = self._reduced([getattr(stats, name) for name in _MAXIMA], dist.ReduceOp.MAX)
        values: dict[str, Any] = dict(zip((*sums, *_MAXIMA), (*summed, *most), strict=True))
        counts = {name for name, value in vars(stats).items() if isinstance(value, int)}
        return replace(stats, **{n: int(v) if n in counts else v for n, v in values.items()})

    def sum(self, value: float) -> float:
        """Over all ranks."""
        return self._reduced([value], dist.ReduceOp.SUM)[0]

    def local(self, tensor: Tensor) -> Tensor:
        """This rank's rows."""
        return held_part(tensor)

    def whole(self, part: Tensor, parameter: Tensor) -> Tensor:
        """A tensor of which every rank holds its rows, as torch.distributed.checkpoint saves it."""
        assert isinstance(parameter, DTensor)  # all parameters of a sharded model are
        return DTensor.from_local(
            part,
            self._mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )

    def _reduced(self, values: Sequence[float], how: dist.ReduceOp.RedOpType) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self._mesh.device_type)
        dist.all_reduce(tensor, how, group=self._group)
        numbers: list[float] = tensor.tolist()
        return numbers
