from __future__ import annotations

from types import SimpleNamespace

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
