"""What a real run tells Weights & Biases (offline), TensorBoard and its folder, and its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.integration.learner.test_script_runs import CONFIG, trainer_of
from tests.support import run_folders
from tests.support.wandb_runs import history

from antiphon.learner.record.report.page import page
from antiphon.learner.record.report.run_data import read_run
from antiphon.learner.record.rollout_reader import read_trees


def test_a_run_is_told_to_every_tracker_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    seen: list[float] = []

    def reward(a: list[str], b: list[str]) -> list[float]:
        seen.append(float(len(b[0]) - len(a[0])))
        return [seen[-1]]

    trainer = trainer_of(
        tmp_path,
        reward_func=reward,
        args=CONFIG.replace(trackers=("wandb", "tensorboard")),
        wandb_config={"project": "p", "offline": True, "dir": tmp_path / "wandb", "verbose": False},
    )
    trainer.train()
    assert trainer.run_directory is not None
    rows = run_folders.metrics(trainer.run_directory)
    assert [row["joint_actions"] for row in rows] == [6, 12]  # 2 and then 4 a prompt

    told: list[dict[str, Any]] = history(tmp_path / "wandb")
    events = EventAccumulator(str(trainer.run_directory / "tensorboard"))
    events.Reload()
    for name in ("turn_1/reward_mean", "turn_2/expected_return", "agent_1/loss"):
        expected = [(row["joint_actions"], row[name]) for row in rows]
        assert [(row["step"], row[name]) for row in told] == expected
        points = [(event.step, event.value) for event in events.Scalars(name)]
        assert points == [(step, pytest.approx(value)) for step, value in expected]

    trees = list(read_trees(trainer.run_directory / "rollouts"))
    rewards = [a.reward for tree in trees for node in tree for a in node.joint_actions]
    assert sorted(rewards) == sorted(seen)
    html = page(read_run(trainer.run_directory), 0)
    start = html.index('id="trees">') + len('id="trees">')
    shown = json.loads(html[start : html.index("</script>", start)])
    texts = [a["text"] for g in shown[0]["nodes"][0]["answers"] for a in g.values()]
    assert texts == [a.text for n in range(2) for j in trees[0][0].joint_actions for a in j.answers if a.agent == n]  # fmt: skip # noqa: E501
