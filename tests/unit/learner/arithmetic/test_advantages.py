from __future__ import annotations

import math

import pytest

from antiphon.clients.types import FieldError
from antiphon.learner.arithmetic.advantages import group_advantages

# R = 1, 2, 3, 6: mean 3, population standard deviation sqrt(3.5), sqrt(mean R^2) = sqrt(12.5).
RETURNS = [1.0, 2.0, 3.0, 6.0]
PLAIN = {
    "mean": [-2.0, -1.0, 0.0, 3.0],
    "rloo": [-8 / 3, -4 / 3, 0.0, 4.0],
    "max": [-5.0, -4.0, -3.0, 0.0],
    "raw": [1.0, 2.0, 3.0, 6.0],
}
SCALE = {"mean": 3.5**0.5, "rloo": 3.5**0.5, "max": 3.5**0.5, "raw": 12.5**0.5}
MODES = list(PLAIN)


@pytest.mark.parametrize("mode", MODES)
def test_advantages_of_each_mode(mode: str) -> None:
    group = group_advantages(RETURNS, mode, normalize=False)
    assert not group.dead
    assert group.values == pytest.approx(PLAIN[mode])


@pytest.mark.parametrize("mode", MODES)
def test_normalisation_divides_and_does_not_centre_again(mode: str) -> None:
    group = group_advantages(RETURNS, mode, normalize=True)
    assert group.values == pytest.approx([a / SCALE[mode] for a in PLAIN[mode]])


def test_normalised_modes_stay_four_different_sets() -> None:
    """L10: raw, max, rloo and mean do not become the same numbers."""
    sets = {
        mode: [round(a or 0.0, 6) for a in group_advantages(RETURNS, mode, normalize=True).values]
        for mode in MODES
    }
    assert len({tuple(values) for values in sets.values()}) == 4


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("normalize", [True, False])
def test_missing_returns_have_no_advantage_and_no_weight(mode: str, normalize: bool) -> None:
    """L6: the rest train as if the missing ones had not been sampled."""
    group = group_advantages([None, 1.0, 2.0, None, 3.0, 6.0], mode, normalize)
    alone = group_advantages(RETURNS, mode, normalize)
    assert [group.values[0], group.values[3]] == [None, None]
    assert [group.values[i] for i in (1, 2, 4, 5)] == alone.values


@pytest.mark.parametrize("mode", ["mean", "rloo", "max"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("value", [0.5, 0.0, 0.1, -3.0, 1e9])
def test_equal_returns_are_dead_with_advantage_zero(
    mode: str, normalize: bool, value: float
) -> None:
    """L5: no 0/0, no signal."""
    group = group_advantages([value] * 4, mode, normalize)
    assert group.dead
    assert group.values == [0.0] * 4


@pytest.mark.parametrize("mode", ["mean", "rloo", "max"])
def test_dead_is_a_range_of_at_most_a_millionth(mode: str) -> None:
    assert group_advantages([0.0, 1e-6], mode, normalize=True).dead
    assert not group_advantages([0.0, 1.1e-6], mode, normalize=True).dead


def test_the_scale_has_a_floor() -> None:
    # Standard deviation 0.55e-6 is below the floor: divided by 1e-6.
    assert group_advantages([0.0, 1.1e-6], "mean", normalize=True).values == pytest.approx(
        [-0.55, 0.55]
    )
    # sqrt(mean R^2) = 1.1e-6 / sqrt(2) = 0.78e-6 as well.
    assert group_advantages([0.0, 1.1e-6], "raw", normalize=True).values == pytest.approx([0, 1.1])


def test_raw_is_dead_where_every_return_is_about_zero_only() -> None:
    assert group_advantages([1e-6, -1e-6, 0.0], "raw", normalize=True).dead
    alive = group_advantages([0.5, 0.5, 0.5, 0.5], "raw", normalize=True)
    assert not alive.dead
    assert alive.values == pytest.approx([1.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("returns", [[], [None], [3.0], [None, 3.0, None]])
def test_fewer_than_two_returns_are_dead(mode: str, returns: list[float | None]) -> None:
    """L6: fewer than two left: the node trains nothing."""
    group = group_advantages(returns, mode, normalize=True)
    assert group.dead
    assert group.values == [None if r is None else 0.0 for r in returns]


def test_mean_advantages_sum_to_zero_and_have_unit_spread() -> None:
    values = group_advantages([0.1, 0.9, -4.0, 7.5, 2.0], "mean", normalize=True).values
    present = [a for a in values if a is not None]
    assert math.fsum(present) == pytest.approx(0.0, abs=1e-12)
    assert math.fsum(a * a for a in present) / 5 == pytest.approx(1.0)


@pytest.mark.parametrize("mode", ["Mean", "loo", ""])
def test_an_unknown_mode_is_refused(mode: str) -> None:
    with pytest.raises(FieldError, match="advantage_mode"):
        group_advantages(RETURNS, mode, normalize=True)
