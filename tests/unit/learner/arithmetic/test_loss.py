from __future__ import annotations

import math

import pytest
import torch
from tests.support.trees import make_sample

from antiphon.clients.types import FieldError
from antiphon.learner.arithmetic.loss import LossStats, LossTokens, policy_loss, token_weights


def loss_of(
    ratios: list[float],
    advantages: list[float],
    weights: list[float] | None = None,
    **options: object,
) -> tuple[float, list[float], LossStats]:
    """Loss, its gradient by log-probability, and statistics; the engine gave -1 each time."""
    now = torch.tensor([math.log(r) - 1.0 for r in ratios], requires_grad=True)
    tokens = LossTokens(
        now,
        torch.full((len(ratios),), -1.0),
        torch.tensor(advantages),
        torch.tensor(weights or [1.0] * len(ratios)),
    )
    loss, stats = policy_loss(tokens, **options)
    loss.backward()
    assert now.grad is not None
    return loss.item(), now.grad.tolist(), stats


def test_at_ratio_one_the_gradient_is_that_of_minus_a_log_pi() -> None:
    with_ratio = loss_of([1.0, 1.0], [2.0, -0.5], [0.25, 0.5])
    without = loss_of([1.0, 1.0], [2.0, -0.5], [0.25, 0.5], importance_ratio=False)
    assert with_ratio[1] == pytest.approx([-0.5, 0.25])
    assert without[1] == pytest.approx([-0.5, 0.25])
    assert with_ratio[0] == pytest.approx(-0.25)  # -(0.25 * 2 - 0.5 * 0.5)
    assert without[0] == pytest.approx(0.25)  # -(0.25 * 2 * -1 + 0.5 * -0.5 * -1)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.1, 2.0, -2.2, -2.2, 0),  # inside
        (1.5, 2.0, -2.4, 0.0, 1),  # up and good: bounded at 1.2
        (0.5, 2.0, -1.0, -1.0, 0),  # down and good: pulled back up
        (0.5, -2.0, 1.6, 0.0, 1),  # down and bad: bounded at 0.8
        (1.5, -2.0, 3.0, 3.0, 0),  # up and bad: pushed down
        (1.5, 0.0, 0.0, 0.0, 0),
    ],
)
def test_the_clip_bounds_what_the_advantage_has_already_won(
    ratio: float, advantage: float, loss: float, gradient: float, clipped: int
) -> None:
    got_loss, got_gradient, stats = loss_of([ratio], [advantage])
    assert got_loss == pytest.approx(loss)
    assert got_gradient == pytest.approx([gradient])
    assert stats.clipped == clipped


def test_the_clip_has_two_sides_of_its_own() -> None:
    bounds = {"clip_low": 0.1, "clip_high": 0.5}
    assert loss_of([2.0, 0.2], [1.0, -1.0], **bounds)[0] == pytest.approx(-1.5 + 0.9)


@pytest.mark.parametrize(
    ("ratio", "loss", "gradient"),
    [
        (4.0, 2.0, 2.0),  # 4 * stopgrad(2 / 4): value 2, gradient that of log pi times 2
        (1.5, 1.5, 1.5),  # below the cap: as it is
    ],
)
def test_a_stale_ratio_is_truncated_at_the_cap(ratio: float, loss: float, gradient: float) -> None:
    got = loss_of([ratio], [-1.0], ratio_cap=2.0)
    assert got[0] == pytest.approx(loss)
    assert got[1] == pytest.approx([gradient])
    assert loss_of([4.0], [-1.0])[1] == pytest.approx([4.0])


def test_without_a_ratio_neither_clip_nor_cap_counts() -> None:
    loss, gradient, stats = loss_of([4.0], [1.0], importance_ratio=False, ratio_cap=2.0)
    assert loss == pytest.approx(1.0 - math.log(4.0))
    assert gradient == pytest.approx([-1.0])
    assert stats.clipped == 0


def test_statistics_of_parts_add_up_to_those_of_the_whole() -> None:
    ratios, advantages, weights = [1.5, 0.5, 1.0], [1.0, -1.0, 2.0], [0.5, 0.25, 0.125]
    whole = loss_of(ratios, advantages, weights)[2]
    parts = (
        loss_of(ratios[:2], advantages[:2], weights[:2])[2]
        + loss_of(ratios[2:], advantages[2:], weights[2:])[2]
    )
    assert vars(parts) == pytest.approx(vars(whole))
    assert whole.tokens == 3
    assert whole.loss == pytest.approx(-0.5 * 1.2 + 0.25 * 0.8 - 0.125 * 2.0)
    assert whole.ratio_sum == pytest.approx(3.0)
    assert whole.ratio_max == pytest.approx(1.5)
    assert whole.clipped == 2
    assert whole.gap_sum == pytest.approx(math.log(1.5) + math.log(2.0))
    assert whole.gap_max == pytest.approx(math.log(2.0))
    assert whole.truncated == 0


def test_a_stale_ratio_is_truncated_at_its_cap_before_the_clip() -> None:
    """Off-policy: rho becomes rho * stopgrad(min(1, c / rho)), so value and gradient stop at c."""
    ratios, advantages = [3.0, 1.1, 0.5, 3.0], [-1.0, -1.0, 1.0, 1.0]
    loss, gradient, stats = loss_of(ratios, advantages, ratio_cap=2.0)
    # A < 0 above the clip is not bounded by it: 2 where 3 was; A > 0 is clipped at 1.2 first.
    assert loss == pytest.approx(2.0 + 1.1 - 0.5 - 1.2)
    assert gradient == pytest.approx([2.0, 1.1, -0.5, 0.0])
    assert (stats.truncated, stats.clipped) == (2, 1)
    assert stats.ratio_max == pytest.approx(3.0)  # what is told is the ratio as it was
    uncapped = loss_of(ratios, advantages)
    assert uncapped[1] == pytest.approx([3.0, 1.1, -0.5, 0.0])
    assert uncapped[2].truncated == 0


# Two nodes: completions of 2 and 4 tokens; of 1, 3 and 2 tokens.
NODES = [
    make_sample([1], [([5] * 2, 1.0), ([5] * 4, -1.0)]),
    make_sample([1, 2], [([5] * 1, 1.0), ([5] * 3, -1.0), ([5] * 2, 0.0)]),
]


@pytest.mark.parametrize(
    ("normalization", "weights"),
    [
        ("sequence", [[1 / 4, 1 / 4], [1 / 6, 1 / 6, 1 / 6]]),  # 2 nodes x 2, x 3 completions
        ("token", [[1 / 12] * 2, [1 / 12] * 3]),  # 12 tokens
        ("constant", [[1 / 40] * 2, [1 / 40] * 3]),  # 5 completions x 8 new tokens
    ],
)
def test_weight_of_a_token_in_each_normalisation(
    normalization: str, weights: list[list[float]]
) -> None:
    got = token_weights(NODES, normalization, max_new_tokens=8)
    assert [pytest.approx(w) for w in weights] == got


def test_an_unknown_normalisation_is_refused() -> None:
    with pytest.raises(FieldError, match="loss_normalization"):
        token_weights(NODES, "mean", max_new_tokens=8)
