"""What Prometheus sees of a learner, on a clock that the test moves."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.support.trees import make_node

from antiphon.clients.types import RunState
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.policy.policy import StepStats
from antiphon.learner.policy.updates import AgentUpdate
from antiphon.learner.record.metrics import LearnerMetrics
from antiphon.learner.record.record import RunRecord
from antiphon.learner.record.run_folder import RunFolder
from antiphon.learner.weights.publisher import Publication


class Seen:
    """A record, its metrics and a clock."""

    def __init__(self, folder: Path, config: MAGRPOConfig | None = None, total: int = 0) -> None:
        self.clock = 1000.0
        self._registry = CollectorRegistry()
        self.record = RunRecord(
            RunFolder.create(folder, "run"),
            config or MAGRPOConfig(num_turns=1),
            num_agents=2,
            models=["m", "m"],
            prompts_total=total,
            metrics=LearnerMetrics(self._registry, now=lambda: self.clock),
            now=lambda: self.clock,
        )

    def value(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(f"antiphon_{name}", labels)

    def states(self) -> list[str]:
        return [state for state in RunState if self.value("run_state", state=state)]


def test_the_state_is_one_of_all(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    assert seen.states() == ["starting"]
    seen.record.state_changed(RunState.TRAINING)
    assert seen.states() == ["training"]
    seen.record.finish(RunState.FAILED, "gone")
    assert seen.states() == ["failed"]


def test_progress_is_of_the_run_and_the_counters_are_of_the_process(tmp_path: Path) -> None:
    seen = Seen(tmp_path, total=4)
    left = seen.value("learner_left_seconds")
    assert left is not None
    assert math.isnan(left)
    seen.record.load_state_dict({**seen.record.state_dict(), "prompts_done": 2})
    assert seen.value("learner_prompts_done") == 2
    seen.record.state_changed(RunState.TRAINING)
    seen.record.rolled_out(1, [make_node([0.0, 1.0])])
    seen.clock += 30
    seen.record.batch_done({"update": 12.0})
    assert seen.value("learner_prompts_done") == 3
    assert seen.value("learner_prompts_trained_total") == 1
    assert seen.value("learner_left_seconds") == 30
    assert seen.value("learner_last_batch_timestamp_seconds") == 1030
    assert seen.value("learner_batch_seconds_total") == 30
    assert seen.value("learner_idle_seconds_total") == 18


def test_agents_that_share_a_policy_share_its_version(tmp_path: Path) -> None:
    seen = Seen(tmp_path, MAGRPOConfig(num_turns=1, shared_policy=True))
    seen.record.published([Publication(0, 5, 1, 0.1, 0.0)])
    assert [seen.value("learner_weights_version", agent=agent) for agent in "01"] == [5, 5]


def test_dead_groups_say_why(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    seen.record.rolled_out(1, [make_node([1.0, 1.0]), make_node([1.0, None])])
    dead = "learner_dead_groups_total"
    assert seen.value(dead, agent="1", reason="no_difference") == 1
    assert seen.value(dead, agent="1", reason="too_few_returns") == 1
    assert seen.value("learner_groups_total", agent="1") == 2


def test_an_agent_s_returns_are_those_that_it_is_trained_on(tmp_path: Path) -> None:
    seen = Seen(tmp_path, MAGRPOConfig(num_turns=1, num_generations=2, joint_mode="cross"))
    seen.record.rolled_out(1, [make_node([0.0, 1.0, 2.0, 5.0], num_generations=2, mode="cross")])
    assert seen.value("learner_agent_expected_return", turn="1", agent="0") == 2.0


def test_a_step_without_a_cap_or_a_kl_tells_neither(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    stats = StepStats(True, 1, 0, learning_rate=5e-6, logprob_gap_mean=0.25, logprob_gap_max=0.5)
    with_both = replace(stats, truncated_fraction=0.125, reference_kl_loss=0.75)
    seen.record.updated([AgentUpdate(0, [([], stats)]), AgentUpdate(1, [([], with_both)])])
    assert seen.value("learner_learning_rate", agent="0") == 5e-6
    assert seen.value("learner_logprob_gap_mean", agent="0") == 0.25
    assert seen.value("learner_logprob_gap_max", agent="0") == 0.5
    for name, value in (("truncated_tokens_ratio", 0.125), ("reference_kl_loss", 0.75)):
        assert seen.value(f"learner_{name}", agent="0") is None
        assert seen.value(f"learner_{name}", agent="1") == value


def test_checkpoints_tell_when_and_whether(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    assert seen.value("learner_checkpoint_timestamp_seconds") == 0
    seen.record.save_failed()
    seen.clock += 5
    seen.record.saved(2.5)
    assert seen.value("learner_checkpoint_timestamp_seconds") == 1005
    assert seen.value("learner_checkpoint_seconds_sum") == pytest.approx(2.5)
    assert seen.value("learner_checkpoint_failures_total") == 1
