"""The learning rate of each optimiser step: warm-up, then constant, linear or cosine.

Steps are an agent's own optimiser steps, counted from 1. With W warm-up steps and T steps in all,
step k has the learning rate times

    k / (W + 1)                               k <= W: a straight line up, no step at rate 0
    1                                         k > W, constant
    f + (1 - f) (1 - p)                       k > W, linear
    f + (1 - f) (1 + cos(pi p)) / 2           k > W, cosine (arXiv 1608.03983, one cycle)

where p = (k - 1 - W) / (T - W), at most 1, and f is the floor. So step W + 1 has the whole rate,
step T is the last one above the floor, and steps after T stay at the floor.

T is the most steps that a run can take (`plan.most_optimizer_steps`): branches that end early and
dead groups make it fewer, so a run may end before its rate has come down to the floor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from antiphon.clients.types import FieldError


class ScheduleType(StrEnum):
    """What the learning rate does after the warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


@dataclass(frozen=True)
class Schedule:
    """The factor of the learning rate by optimiser step.

    `total_steps` is T; None where nothing depends on it. `floor` is the factor that linear and
    cosine come down to.

    Raises:
        FieldError: T is missing, or the warm-up leaves nothing of it.
    """

    type: str = ScheduleType.CONSTANT
    warmup_steps: int = 0
    total_steps: int | None = None
    floor: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what has no answer."""
        if self.type not in tuple(ScheduleType):
            wanted = ", ".join(repr(kind.value) for kind in ScheduleType)
            raise FieldError("lr_scheduler_type", repr(self.type), f"one of {wanted}")
        if self.type == ScheduleType.CONSTANT:
            return
        if self.total_steps is None:
            raise FieldError(
                "lr_total_steps",
                "nothing, and a dataset of unknown length",
                f"the optimiser steps over which {self.type!r} comes down; or max_steps",
            )
        if self.total_steps <= self.warmup_steps:
            raise FieldError(
                "warmup_steps",
                self.warmup_steps,
                f"fewer than the {self.total_steps} optimiser steps in all",
            )

    def factor(self, step: int) -> float:
        """What the learning rate of the `step`-th optimiser step, from 1, is multiplied by."""
        if step <= self.warmup_steps:
            return step / (self.warmup_steps + 1)
        if self.type == ScheduleType.CONSTANT or self.total_steps is None:
            return 1.0
        past = (step - 1 - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        past = min(1.0, past)
        left = 1.0 - past
        if self.type == ScheduleType.COSINE:
            left = (1.0 + math.cos(math.pi * past)) / 2.0
        return self.floor + (1.0 - self.floor) * left


def warmup_of(steps: int, ratio: float, total_steps: int | None) -> int:
    """Warm-up steps from a number, or from a share of all steps (rounded up).

    Raises:
        FieldError: Both are given, or a share of an unknown number is asked for.
    """
    if ratio == 0:
        return steps
    if steps:
        raise FieldError("warmup_ratio", ratio, f"0, as warmup_steps is {steps}")
    if total_steps is None:
        raise FieldError(
            "lr_total_steps",
            "nothing, and a dataset of unknown length",
            "the optimiser steps that warmup_ratio is a share of; or max_steps, or warmup_steps",
        )
    return math.ceil(ratio * total_steps)
