from __future__ import annotations

import pytest

from antiphon.learner.run.early_stop import EarlyStop, StopRule

METRIC = "turn_2/reward_mean"


def after(rule: StopRule, *values: float) -> EarlyStop:
    stop = EarlyStop(rule)
    for value in values:
        stop.observe({METRIC: value, "turn_1/reward_mean": 100.0})
    return stop


def test_a_value_that_is_reached_ends_the_run() -> None:
    rule = StopRule(METRIC, value=0.5)
    assert after(rule, 0.1, 0.4999).reason is None
    assert after(rule, 0.1, 0.5).reason == "turn_2/reward_mean is 0.5, at least 0.5"
    falling = StopRule(METRIC, value=0.5, larger_is_better=False)
    assert after(falling, 0.9, 0.51).reason is None
    assert after(falling, 0.9, 0.4).reason == "turn_2/reward_mean is 0.4, at most 0.5"


def test_patience_counts_rows_without_a_better_value() -> None:
    rule = StopRule(METRIC, patience=2)
    assert after(rule, 1.0, 0.9, 1.1, 1.1).reason is None
    stop = after(rule, 1.0, 0.9, 1.1, 1.1, 1.0)
    assert stop.best == 1.1
    assert stop.reason is not None
    assert "better than 1.1 for 2 rows" in stop.reason


def test_better_is_by_more_than_the_least_gain_against_the_best() -> None:
    """Small gains add up: 1.0, 1.06, 1.12 is better by 0.12 than the best, 1.0."""
    rule = StopRule(METRIC, patience=3, min_delta=0.1)
    stop = after(rule, 1.0, 1.06, 1.12)
    assert (stop.best, stop.rows_since_best) == (1.12, 0)
    falling = StopRule(METRIC, patience=1, larger_is_better=False)
    assert after(falling, 2.0, 1.0).reason is None
    assert after(falling, 2.0, 2.5).reason is not None


@pytest.mark.parametrize("row", [{}, {METRIC: float("nan")}])
def test_rows_without_the_metric_are_passed_over(row: dict[str, float]) -> None:
    stop = EarlyStop(StopRule(METRIC, patience=1))
    stop.observe(row)
    assert not stop.seen
    stop.observe({METRIC: 1.0})
    stop.observe(row)
    assert (stop.seen, stop.reason, stop.rows_since_best) == (True, None, 0)


def test_it_goes_on_where_it_stood() -> None:
    rule = StopRule(METRIC, patience=2)
    first, second = after(rule, 1.0, 0.5), EarlyStop(rule)
    second.load_state_dict(first.state_dict())
    second.observe({METRIC: 0.6})
    assert second.reason is not None
