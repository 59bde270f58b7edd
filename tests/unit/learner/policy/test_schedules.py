from __future__ import annotations

import math

import pytest

from antiphon.clients.types import FieldError
from antiphon.learner.policy.schedules import Schedule, warmup_of


def factors(schedule: Schedule, steps: int) -> list[float]:
    return [schedule.factor(step) for step in range(1, steps + 1)]


def test_a_warm_up_is_a_straight_line_without_a_step_at_rate_zero() -> None:
    wanted = [1 / 4, 2 / 4, 3 / 4, 1, 1, 1]
    assert factors(Schedule(warmup_steps=3), 6) == pytest.approx(wanted, abs=1e-15)


def test_linear_comes_down_evenly_and_stays_at_its_floor() -> None:
    linear = Schedule("linear", warmup_steps=3, total_steps=8)
    wanted = [1 / 4, 2 / 4, 3 / 4, 1, 0.8, 0.6, 0.4, 0.2, 0, 0]
    assert factors(linear, 10) == pytest.approx(wanted, abs=1e-15)
    above = Schedule("linear", total_steps=2, floor=0.5)
    assert factors(above, 4) == pytest.approx([1, 0.75, 0.5, 0.5], abs=1e-15)


def test_cosine_is_half_a_wave() -> None:
    eighth = math.cos(math.pi / 4)
    wanted = [1, (1 + eighth) / 2, 0.5, (1 - eighth) / 2, 0, 0]
    assert factors(Schedule("cosine", total_steps=4), 6) == pytest.approx(wanted, abs=1e-15)
    warm = Schedule("cosine", warmup_steps=1, total_steps=3, floor=0.2)
    assert factors(warm, 4) == pytest.approx([0.5, 1, 0.6, 0.2], abs=1e-15)


def test_constant_needs_no_number_of_steps() -> None:
    assert factors(Schedule(), 3) == [1, 1, 1]


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_what_comes_down_needs_to_know_over_how_many_steps(kind: str) -> None:
    with pytest.raises(FieldError, match="lr_total_steps: got nothing"):
        Schedule(kind)
    with pytest.raises(FieldError, match="warmup_steps: got 5, wanted fewer than the 5"):
        Schedule(kind, warmup_steps=5, total_steps=5)


def test_an_unknown_type_is_refused_by_name() -> None:
    with pytest.raises(FieldError, match="lr_scheduler_type: got 'polynomial'"):
        Schedule("polynomial", total_steps=5)


def test_a_warm_up_ratio_is_rounded_up_and_excludes_a_number() -> None:
    assert warmup_of(0, 0.1, 25) == 3
    assert warmup_of(7, 0.0, None) == 7
    with pytest.raises(FieldError, match=r"warmup_ratio: got 0\.1, wanted 0, as warmup_steps is 7"):
        warmup_of(7, 0.1, 25)
    with pytest.raises(FieldError, match="lr_total_steps"):
        warmup_of(0, 0.1, None)
