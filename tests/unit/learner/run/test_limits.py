from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from antiphon.learner.policy.updates import AgentUpdate
from antiphon.learner.run.dead_streak import DeadStreak
from antiphon.learner.run.early_stop import EarlyStop, StopRule
from antiphon.learner.run.limits import Limits


def test_the_run_ends_once_one_policy_has_taken_the_steps() -> None:
    slow, fast = SimpleNamespace(optimizer_steps=0), SimpleNamespace(optimizer_steps=2)
    limits = Limits([slow, fast], max_steps=3)
    assert limits.reached is None
    fast.optimizer_steps = 3
    assert limits.reached == "max_steps: 3 optimiser steps are taken"
    assert Limits([slow, fast]).reached is None


def test_the_run_ends_once_a_metric_says_so_and_a_metric_that_never_came_is_named() -> None:
    stop = EarlyStop(StopRule("turn_1/reward_mean", value=1.0))
    limits = Limits(early_stop=stop)
    stop.observe({"turn_2/reward_mean": 5.0})
    assert (limits.reached, limits.unread) == (None, "turn_1/reward_mean")
    stop.observe({"turn_1/reward_mean": 5.0})
    assert limits.reached == "turn_1/reward_mean is 5, at least 1"
    assert limits.unread is None
    assert Limits().unread is None


def update(*steps: tuple[int, int]) -> AgentUpdate:
    """One policy's steps, each of so many live and dead nodes."""
    made: list[Any] = [([], SimpleNamespace(live_nodes=a, dead_nodes=b)) for a, b in steps]
    return AgentUpdate(0, made)


def test_a_run_of_dead_groups_only_ends_and_says_why() -> None:
    """S11: the run does not look alive for hours."""
    limits = Limits(dead_streak=DeadStreak(5))
    limits.observe([update((0, 2)), update((0, 2))])
    assert limits.reached is None
    limits.observe([update((1, 1)), update((0, 2), (0, 2))])  # a live one begins anew
    assert limits.reached is None
    limits.observe([update(), update((0, 1))])
    assert limits.reached is not None
    assert "dead_groups_limit: the last 5 groups were dead" in limits.reached
    assert "look at the rewards" in limits.reached


def test_dead_groups_end_nothing_where_that_is_off_and_are_counted_over_a_resume() -> None:
    counted = DeadStreak(None)
    counted.observe([update((0, 10_000))])
    assert counted.reason is None
    resumed = DeadStreak(10_001)
    resumed.load_state_dict(counted.state_dict())
    assert resumed.reason is None
    resumed.observe([update((0, 1))])
    assert resumed.reason is not None
