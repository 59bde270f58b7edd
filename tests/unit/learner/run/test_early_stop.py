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


def resumed(rule: StopRule, before: EarlyStop) -> EarlyStop:
    stop = EarlyStop(rule)
    stop.load_state_dict(before.state_dict())
    return stop


def test_a_run_that_had_ended_goes_on_under_a_rule_that_is_not_met() -> None:
    ended = after(StopRule(METRIC, value=0.5), 0.1, 0.6)
    assert resumed(StopRule(METRIC, value=0.5), ended).reason == f"{METRIC} is 0.6, at least 0.5"
    further = resumed(StopRule(METRIC, value=0.9), ended)
    assert further.reason is None
    further.observe({METRIC: 0.95})
    assert further.reason == f"{METRIC} is 0.95, at least 0.9"
    patient = after(StopRule(METRIC, patience=2), 1.0, 0.9, 0.8)
    assert resumed(StopRule(METRIC, patience=2), patient).reason is not None
    more = resumed(StopRule(METRIC, patience=3), patient)
    assert more.reason is None
    more.observe({METRIC: 0.7})
    assert more.reason is not None
    assert "better than 1 for 3 rows" in more.reason


def test_a_rule_that_is_met_already_ends_the_resumed_run() -> None:
    assert resumed(StopRule(METRIC, value=0.5), after(StopRule(METRIC, value=0.9), 0.6)).reason
    fell = after(StopRule(METRIC, value=0.9), 0.6, 0.4)  # the last row counts, not the best
    assert resumed(StopRule(METRIC, value=0.5), fell).reason is None


@pytest.mark.parametrize(
    "rule",
    [
        StopRule("turn_1/reward_mean", patience=1),
        StopRule(METRIC, patience=1, larger_is_better=False),
    ],
)
def test_another_metric_or_mode_begins_anew(rule: StopRule) -> None:
    stop = resumed(rule, after(StopRule(METRIC, patience=1), 0.5, 0.4))
    assert (stop.seen, stop.reason) == (False, None)
    stop.observe({rule.metric: 0.9})
    assert (stop.best, stop.rows_since_best, stop.reason) == (0.9, 0, None)


def test_a_state_of_an_earlier_version_is_taken() -> None:
    """It has no metric, mode or last value, but the reason under the rule of then."""
    ended = {"best": 0.6, "rows_since_best": 0, "reason": "it is 0.6, at least 0.5"}
    met, unmet = EarlyStop(StopRule(METRIC, value=0.5)), EarlyStop(StopRule(METRIC, value=0.9))
    met.load_state_dict(ended)
    unmet.load_state_dict(ended)
    assert (met.reason, unmet.reason) == (f"{METRIC} is 0.6, at least 0.5", None)
    waited = EarlyStop(StopRule(METRIC, value=0.5, patience=3))
    waited.load_state_dict({"best": 0.6, "rows_since_best": 2, "reason": None})
    assert waited.reason is None
    waited.observe({METRIC: 0.4})
    assert waited.reason is not None
