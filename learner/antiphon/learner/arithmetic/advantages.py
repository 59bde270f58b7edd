"""Advantages of one group: the completions of one agent at one node, so of one prompt.

Over its n returns R (missing ones are in no sum and get no advantage):

    mean   A = R - mean(R)                    rloo   A = (n R - sum(R)) / (n - 1)
    max    A = R - max(R)                     raw    A = R

Normalisation divides mean, rloo and max by the population standard deviation of R, and raw by
sqrt(mean(R^2)), each at least 1e-6; it does not centre again, so the four modes stay four.

A group is dead when it has no signal: max(R) - min(R) <= 1e-6 (raw: every |R| <= 1e-6), or fewer
than two returns. Its advantages are 0, it is counted, and no optimiser step comes from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from antiphon.clients.types import FieldError

SCALE_FLOOR = 1e-6
DEAD_RANGE = 1e-6


class AdvantageMode(StrEnum):
    """What a return is compared with."""

    MEAN = "mean"
    RLOO = "rloo"
    MAX = "max"
    RAW = "raw"


@dataclass(frozen=True)
class GroupAdvantages:
    """Advantages of a group [G], None where the return is missing, and whether it is dead."""

    values: list[float | None]
    dead: bool


def group_advantages(
    returns: Sequence[float | None], mode: str, normalize: bool
) -> GroupAdvantages:
    """Advantages of a group from its returns [G].

    Raises:
        FieldError: `mode` is not one of AdvantageMode.
    """
    if mode not in list(AdvantageMode):
        wanted = ", ".join(repr(m.value) for m in AdvantageMode)
        raise FieldError("advantage_mode", repr(mode), f"one of {wanted}")
    present = [value for value in returns if value is not None]
    if _is_dead(present, mode):
        return GroupAdvantages([None if value is None else 0.0 for value in returns], dead=True)
    scale = _scale(present, mode) if normalize else 1.0
    advantages = iter([a / scale for a in _compare(present, mode)])
    return GroupAdvantages(
        [None if value is None else next(advantages) for value in returns], dead=False
    )


def _is_dead(returns: Sequence[float], mode: str) -> bool:
    if len(returns) < 2:
        return True
    if mode == AdvantageMode.RAW:
        return all(abs(value) <= DEAD_RANGE for value in returns)
    return max(returns) - min(returns) <= DEAD_RANGE


def _compare(returns: Sequence[float], mode: str) -> list[float]:
    n = len(returns)
    if mode == AdvantageMode.MEAN:
        mean = fmean(returns)
        return [value - mean for value in returns]
    if mode == AdvantageMode.RLOO:
        total = math.fsum(returns)
        return [(n * value - total) / (n - 1) for value in returns]
    if mode == AdvantageMode.MAX:
        largest = max(returns)
        return [value - largest for value in returns]
    return list(returns)


def _scale(returns: Sequence[float], mode: str) -> float:
    center = 0.0 if mode == AdvantageMode.RAW else fmean(returns)
    return max(math.sqrt(fmean((value - center) ** 2 for value in returns)), SCALE_FLOOR)
