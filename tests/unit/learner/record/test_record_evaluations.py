"""Evaluations in the record of a run."""

from __future__ import annotations

import json

from prometheus_client import CollectorRegistry, generate_latest
from tests.support import run_folders
from tests.support.trees import make_node
from tests.unit.learner.record.made_record import (
    SECONDS,
    Screen,
    made_record,
    rows_of,
    two_turns,
)

from antiphon.clients.types import RunState
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.evaluation.figures import Evaluation, evaluated_task, overall
from antiphon.learner.record.metrics import learner_metrics
from antiphon.learner.record.run_folder import RunFolder


def _evaluation(number: int, config: MAGRPOConfig) -> Evaluation:
    """Of `two_turns`: mean rewards 0.5 and 2, returns (0 + 3 + 1 + 1) / 2 and 2."""
    task = evaluated_task("row-0", two_turns(), config)
    figures = {**overall([task]), "eval/number": float(number)}
    return Evaluation(number, (task,), figures, seconds=1.5)


def test_an_evaluation_is_a_row_of_its_own_and_counts_in_no_figure_of_training(
    folder: RunFolder,
) -> None:
    registry = CollectorRegistry()
    config, screen = MAGRPOConfig(num_turns=2), Screen()
    record = made_record(folder, config, metrics=learner_metrics(registry), progress=screen)
    record.rolled_out(1, [make_node([1.0, 3.0])])
    record.batch_done(SECONDS)
    record.working_on("evaluating", epoch=1, prompt="p", turn=2)
    assert (screen.snapshots[-1].stage, screen.snapshots[-1].turn) == ("evaluating", 2)
    record.evaluated(_evaluation(1, config), keep_trees=True)
    record.finish(RunState.FINISHED)

    evaluated, trained = rows_of(folder)
    assert (evaluated["prompts"], evaluated["joint_actions"]) == (1, 2)
    assert evaluated["eval/turn_1/reward_mean"] == 0.5
    assert evaluated["eval/turn_1/expected_return"] == 2.5
    assert evaluated["eval/turn_2/reward_mean"] == 2.0
    assert "turn_1/reward_mean" not in evaluated
    assert trained["turn_1/reward_mean"] == 2.0
    assert not [name for name in trained if name.startswith("eval/")]

    text = generate_latest(registry).decode()
    assert 'antiphon_learner_eval_reward_mean{turn="1"} 0.5' in text
    assert 'antiphon_learner_eval_expected_return{turn="2"} 2.0' in text
    assert "antiphon_learner_evaluations_total 1.0" in text
    assert "antiphon_learner_eval_seconds_total 1.5" in text
    assert 'antiphon_learner_joint_actions_total{turn="1"} 2.0' in text
    assert (
        json.loads((folder.path / "summary.json").read_text())["stage_seconds"]["evaluate"] == 1.5
    )


def test_trees_of_an_evaluation_are_kept_where_they_are_wanted(folder: RunFolder) -> None:
    config = MAGRPOConfig(num_turns=2)
    record = made_record(folder, config)
    record.evaluated(_evaluation(1, config), keep_trees=False)
    assert list(folder.rollouts_folder.iterdir()) == []
    record.evaluated(_evaluation(2, config), keep_trees=True)
    assert [row["phase"] for row in run_folders.rollout_rows(folder.path)] == ["eval"] * 6
