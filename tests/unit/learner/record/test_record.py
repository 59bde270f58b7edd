"""The record of a run: rows, rollouts, summary, and what is passed on."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.support import run_folders
from tests.support.trees import make_node
from tests.unit.learner.record.made_record import (
    SECONDS,
    Screen,
    made_record,
    rows_of,
    stepped,
    two_turns,
)

from antiphon.clients.types import RunState, Score
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.policy.policy import StepStats
from antiphon.learner.policy.updates import AgentUpdate
from antiphon.learner.record.metrics import learner_metrics
from antiphon.learner.record.run_folder import RunFolder
from antiphon.learner.rollout.tree import BranchStop
from antiphon.learner.weights.publisher import Publication


def test_every_turn_that_happened_is_in_the_record(folder: RunFolder) -> None:
    """L20: logging_steps 50 on a short run; turn 2 and the last step are written all the same."""
    record = made_record(folder, MAGRPOConfig(num_turns=2, logging_steps=50))
    record.rolled_out(1, [two_turns()])
    record.updated([stepped(0, 0.5), stepped(1, 1.5)])
    record.batch_done(SECONDS)
    assert not folder.metrics_file.exists()
    record.finish(RunState.FINISHED)
    (row,) = rows_of(folder)
    assert row["joint_actions"] == 6
    assert row["turn_1/reward_mean"] == pytest.approx(0.5)
    # R = 0 + mean(2, 4) and 1 + mean(1, 1), so 3 and 2.
    assert row["turn_1/expected_return"] == pytest.approx(2.5)
    assert row["turn_2/reward_mean"] == pytest.approx(2.0)
    assert row["turn_2/expected_return"] == pytest.approx(2.0)
    assert row["turn_2/nodes"] == 2
    assert row["agent_0/loss"] == 0.5
    assert row["agent_1/loss"] == 1.5


def test_rows_are_due_by_joint_actions(folder: RunFolder) -> None:
    record = made_record(folder, MAGRPOConfig(num_turns=1, logging_steps=4))
    for reward in (1.0, 2.0, 3.0):
        record.rolled_out(1, [make_node([reward, reward])])
        record.batch_done(SECONDS)
    assert [row["joint_actions"] for row in rows_of(folder)] == [4]
    assert rows_of(folder)[0]["turn_1/reward_mean"] == pytest.approx(1.5)
    record.finish(RunState.FINISHED)
    assert [row["joint_actions"] for row in rows_of(folder)] == [4, 6]
    assert rows_of(folder)[1]["turn_1/reward_mean"] == pytest.approx(3.0)


def test_a_run_that_ends_on_a_row_writes_no_empty_one(folder: RunFolder) -> None:
    record = made_record(folder, MAGRPOConfig(logging_steps=1))
    record.rolled_out(1, [make_node([1.0, 2.0])])
    record.batch_done(SECONDS)
    record.finish(RunState.FINISHED)
    assert len(rows_of(folder)) == 1


def test_a_failed_run_keeps_what_it_had(folder: RunFolder) -> None:
    """L20: the last step is written however the run ends."""
    record = made_record(folder)
    record.rolled_out(1, [make_node([1.0, 2.0])])
    record.finish(RunState.FAILED, "reward service at localhost:1: gone")
    assert rows_of(folder)[0]["turn_1/reward_mean"] == pytest.approx(1.5)
    assert "gone" in (folder.path / "SUMMARY.md").read_text()
    assert json.loads((folder.path / "summary.json").read_text())["state"] == "failed"


def test_missing_rewards_are_counted_and_in_no_mean(folder: RunFolder) -> None:
    record = made_record(folder)
    node = make_node([1.0, None, 3.0, None])
    node.branches[1].score = Score("x", None, missing_reason="not finite: nan")
    node.branches[3].score = Score("y", 2.0)
    registry = CollectorRegistry()
    record = made_record(folder, metrics=learner_metrics(registry))
    record.rolled_out(1, [node])
    record.finish(RunState.FINISHED)
    (row,) = rows_of(folder)
    assert row["turn_1/reward_mean"] == pytest.approx(2.0)
    assert row["turn_1/missing_rewards"] == 2
    missing = "antiphon_learner_missing_rewards_total"
    assert registry.get_sample_value(missing, {"reason": "not_finite"}) == 1
    assert registry.get_sample_value(missing, {"reason": "reward_processor"}) == 1


def test_a_node_without_any_reward_has_no_mean(folder: RunFolder) -> None:
    record = made_record(folder)
    record.rolled_out(1, [make_node([None, None])])
    record.finish(RunState.FINISHED)
    (row,) = rows_of(folder)
    assert "turn_1/reward_mean" not in row
    assert row["turn_1/missing_rewards"] == 2


def test_rollouts_hold_what_was_asked_answered_and_earned(folder: RunFolder) -> None:
    record = made_record(folder)
    record.rolled_out(2, [two_turns()])
    lines = run_folders.rollouts(folder.path, epoch=2)
    assert [line["path"] for line in lines] == [[], [0], [1]]
    first = lines[0]
    assert (first["task"], first["row"], first["turn"], first["epoch"]) == ("7", 7, 1, 2)
    assert [agent["prompt"] for agent in first["agents"]] == ["prompt 0", "prompt 1"]
    completions = first["agents"][1]["completions"]
    assert [c["text"] for c in completions] == ["20 2", "21 2"]
    assert [c["return"] for c in completions] == [3.0, 2.0]
    # Mean 2.5, population standard deviation 0.5: advantages 1 and -1.
    assert [c["advantage"] for c in completions] == pytest.approx([1.0, -1.0])
    assert completions[0]["weights_versions"] == [1]
    assert [j["reward"] for j in first["joint_actions"]] == [0.0, 1.0]
    assert [j["return"] for j in first["joint_actions"]] == [3.0, 2.0]
    assert lines[2]["agents"][0]["dead"] is True


def test_in_cross_a_completion_is_worth_the_mean_of_its_joint_actions(folder: RunFolder) -> None:
    config = MAGRPOConfig(num_generations=2, joint_mode="cross", num_turns=1)
    record = made_record(folder, config)
    record.rolled_out(1, [make_node([0.0, 1.0, 4.0, None], num_generations=2, mode="cross")])
    (line,) = run_folders.rollouts(folder.path)
    # Joint actions (0,0), (0,1), (1,0), (1,1); the last has no reward and is in no mean.
    assert [j["samples"] for j in line["joint_actions"]] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert [c["return"] for c in line["agents"][0]["completions"]] == [0.5, 4.0]
    assert [c["return"] for c in line["agents"][1]["completions"]] == [2.0, 1.0]


def test_why_a_branch_stopped_is_told(folder: RunFolder) -> None:
    record = made_record(folder)
    node = make_node([1.0, 2.0])
    node.branches[0].stop = BranchStop.TRUNCATED
    node.branches[0].stop_detail = "agent 0: a prompt of 100 tokens"
    node.branches[1].stop = BranchStop.EARLY_TERMINATION
    record.rolled_out(1, [node], skipped=2)
    record.batch_done(SECONDS)
    record.finish(RunState.FINISHED)
    (row,) = rows_of(folder)
    assert row["turn_1/stop/truncated"] == 1
    assert row["turn_1/stop/early_termination"] == 1
    assert row["skipped_prompts"] == 2
    assert row["prompts"] == 3
    (line,) = run_folders.rollouts(folder.path)
    assert line["joint_actions"][0]["stop_detail"] == "agent 0: a prompt of 100 tokens"


def test_numbers_that_json_does_not_know_become_null(folder: RunFolder) -> None:
    record = made_record(folder)
    stats = StepStats(stepped=True, live_nodes=1, dead_nodes=0, tokens=1, ratio_max=math.inf)
    record.updated([AgentUpdate(0, [([], stats)])])
    record.finish(RunState.FINISHED)
    assert rows_of(folder)[0]["agent_0/ratio_max"] is None


def test_dead_steps_are_counted_and_in_no_loss(folder: RunFolder) -> None:
    record = made_record(folder)
    dead = StepStats(stepped=False, live_nodes=0, dead_nodes=3)
    live = StepStats(stepped=True, live_nodes=2, dead_nodes=1, tokens=4, loss=0.25)
    record.updated([AgentUpdate(0, [([], dead), ([], live)]), AgentUpdate(1, [([], dead)])])
    record.finish(RunState.FINISHED)
    (row,) = rows_of(folder)
    assert row["agent_0/loss"] == 0.25
    assert row["agent_0/steps"] == 1
    assert row["agent_0/dead_nodes"] == 4
    assert row["agent_1/dead_nodes"] == 3
    assert "agent_1/loss" not in row


def test_rows_are_passed_on_to_those_who_watch(folder: RunFolder) -> None:
    told: list[tuple[int, Mapping[str, float]]] = []
    record = made_record(
        folder, MAGRPOConfig(logging_steps=1), on_metrics=lambda n, row: told.append((n, row))
    )
    record.rolled_out(1, [make_node([1.0, 2.0])])
    record.published([Publication(1, 4, 100, 0.5, 0.1)])
    record.batch_done(SECONDS)
    ((joint_actions, row),) = told
    assert joint_actions == 2
    assert row["turn_1/reward_mean"] == pytest.approx(1.5)
    assert row["agent_1/weights_version"] == 4
    assert row["seconds/generate"] == 2.0


def test_progress_shows_speed_and_time_left(folder: RunFolder) -> None:
    clock = [60.0]
    screen = Screen()
    record = made_record(folder, prompts_total=4, progress=screen, now=lambda: clock[0])
    clock[0] = 100.0  # forty seconds until the services are up are no part of the pace
    record.state_changed(RunState.TRAINING)
    clock[0] = 112.0
    record.rolled_out(1, [two_turns()])
    record.batch_done(SECONDS)
    shown = screen.snapshots[-1]
    assert (shown.prompts_done, shown.prompts_total) == (1, 4)
    assert shown.seconds_left == pytest.approx(36.0)  # 12 seconds for one prompt, three to go
    # 3 nodes x 2 agents x 2 completions x 2 tokens in 2 seconds.
    assert shown.tokens_per_second == pytest.approx(12.0)
    assert [t.reward_mean for t in shown.turns] == [pytest.approx(0.5), pytest.approx(2.0)]


def test_epoch_means_begin_anew_with_the_epoch(folder: RunFolder) -> None:
    screen = Screen()
    record = made_record(folder, MAGRPOConfig(num_turns=1), progress=screen)
    for epoch, reward in ((1, 1.0), (1, 3.0), (2, 7.0)):
        record.working_on("generate", epoch=epoch)
        record.rolled_out(epoch, [make_node([reward, reward])])
        record.batch_done(SECONDS)
        assert screen.snapshots[-1].epoch == epoch
    after_each_batch = screen.snapshots[2::3]
    assert [s.turns[0].epoch_reward_mean for s in after_each_batch] == [1.0, 2.0, 7.0]


def test_finish_closes_the_display(folder: RunFolder) -> None:
    screen = Screen()
    made_record(folder, progress=screen).finish(RunState.FINISHED)
    assert screen.closed
    assert screen.snapshots[-1].state == "finished"


def test_prometheus_sees_what_the_record_was_told(folder: RunFolder) -> None:
    registry = CollectorRegistry()
    record = made_record(folder, metrics=learner_metrics(registry), prompts_total=4)
    record.rolled_out(1, [two_turns()])
    record.updated([stepped(0, 0.5), stepped(1, 1.5)])
    record.published([Publication(0, 3, 100, 0.5, 0.1)])
    record.batch_done(SECONDS)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"antiphon_learner_{name}", labels)

    assert value("reward_mean", turn="2") == pytest.approx(2.0)
    assert value("expected_return", turn="1") == pytest.approx(2.5)
    assert value("joint_actions_total", turn="2") == 4
    assert value("reward_count", turn="1") == 2
    assert value("dead_groups_total", agent="0", reason="no_difference") == 1
    assert value("groups_total", agent="0") == 3
    assert value("advantage_spread", agent="0") == pytest.approx(2.0)
    assert value("loss", agent="1") == 1.5
    assert value("grad_norm", agent="0") == 2.0
    assert value("weights_version", agent="0") == 3
    assert value("weights_version", agent="1") == 0
    assert value("push_bytes_total", agent="0", kind="full") == 100
    assert value("push_seconds_count", agent="0", kind="full") == 1
    assert value("stage_seconds_total", stage="update") == 1.0
    assert value("prompts_trained_total") == 1
    assert value("prompts_planned") == 4
    assert value("generated_tokens_total", agent="1") == 12
    info = {
        "run": "run",
        "num_agents": "2",
        "num_generations": "4",
        "num_turns": "2",
        "joint_mode": "aligned",
        "advantage_mode": "mean",
        "loss_normalization": "sequence",
        "wire_dtype": "bfloat16",
    }
    assert registry.get_sample_value("antiphon_run_info", info) == 1


def test_a_second_run_in_one_process_shares_the_metrics() -> None:
    registry = CollectorRegistry()
    assert learner_metrics(registry) is learner_metrics(registry)
    assert b"antiphon_learner_epoch" in generate_latest(registry)


def test_every_so_many_th_tree_is_kept(folder: RunFolder) -> None:
    record = made_record(folder, MAGRPOConfig(num_turns=1, keep_rollouts_every=3))
    for batch in range(3):
        record.rolled_out(1, [make_node([float(batch), 0.0]), make_node([float(batch), 1.0])])
        record.batch_done(SECONDS)
    record.finish(RunState.FINISHED)
    # Six prompts in batches of two; kept are number 0 and number 3.
    kept = run_folders.rollouts(folder.path)
    assert [[j["reward"] for j in node["joint_actions"]] for node in kept] == [
        [0.0, 0.0],
        [1.0, 1.0],
    ]


def test_no_tree_is_kept_where_none_is_wanted(folder: RunFolder) -> None:
    record = made_record(folder, MAGRPOConfig(num_turns=1, keep_rollouts_every=0))
    record.rolled_out(1, [make_node([1.0, 0.0])])
    assert list(folder.rollouts_folder.iterdir()) == []


def test_components_of_rewards_are_figures_of_their_turn(folder: RunFolder) -> None:
    record = made_record(folder)
    node = make_node([1.0, 2.0, 3.0])
    node.branches[0].score = Score("x", 1.0, components={"style": 0.25, "length": 0.75})
    node.branches[1].score = Score("y", 2.0, components={"style": 0.75})
    record.rolled_out(1, [node])
    record.finish(RunState.FINISHED)
    (row,) = rows_of(folder)
    assert row["turn_1/components/style"] == 0.5
    assert row["turn_1/components/length"] == 0.75
