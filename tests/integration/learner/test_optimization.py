"""Whole runs of a script: what the optimiser is told reaches it, and ends the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.learner.test_script_runs import CONFIG, trainer_of

from antiphon.clients.types import FieldError
from antiphon.learner import MAGRPOConfig, MAGRPOTrainer
from antiphon.learner.record.run_folder import RunFolder


def config_of(**settings: Any) -> MAGRPOConfig:
    return CONFIG.replace(**{"num_turns": 1, "rollout_buffer_size": 1, **settings})


def trained(directory: Path, **settings: Any) -> MAGRPOTrainer:
    trainer = trainer_of(directory, args=config_of(**settings))
    trainer.train()
    return trainer


def rows(trainer: MAGRPOTrainer) -> list[dict[str, Any]]:
    assert trainer.run_directory is not None
    lines = RunFolder.open(trainer.run_directory).metrics_file.read_text().splitlines()
    return [json.loads(line) for line in lines]


def rates(trainer: MAGRPOTrainer, agent: int) -> list[float]:
    name = f"agent_{agent}/learning_rate"
    return [row[name] for row in rows(trainer) if name in row]


def summary(trainer: MAGRPOTrainer) -> dict[str, Any]:
    assert trainer.run_directory is not None
    read: dict[str, Any] = json.loads((trainer.run_directory / "summary.json").read_text())
    return read


def weights(model: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def test_a_schedule_runs_over_the_steps_of_the_run_and_agents_differ(tmp_path: Path) -> None:
    """Two prompts, two epochs, one turn, one node a step: four steps for each agent."""
    trainer = trained(
        tmp_path, num_train_epochs=2, lr_scheduler_type=["linear", "constant"], warmup_steps=[1, 0]
    )
    assert rates(trainer, 0) == pytest.approx([0.005, 0.01, 0.01 * 2 / 3, 0.01 / 3])
    assert rates(trainer, 1) == pytest.approx([0.01] * 4)


def test_a_frozen_agent_is_sampled_and_scored_but_stays_as_it_is(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, args=config_of(trainable=[True, False], wire_dtype="float32"))
    before = [weights(agent) for agent in trainer.agents]
    trainer.train()
    same = [
        all(torch.equal(p, q) for p, q in zip(agent.parameters(), old, strict=True))
        for agent, old in zip(trainer.agents, before, strict=True)
    ]
    assert same == [False, True]
    told = summary(trainer)
    assert told["optimizer_steps"] == [2, 0]
    assert told["weights_versions"] == [3, 1]
    assert all(row["agent_1/generated_tokens"] > 0 for row in rows(trainer))


def test_max_steps_ends_the_run_after_the_batch(tmp_path: Path) -> None:
    """Buffers drain into two steps per prompt: the second one of the second prompt is not taken."""
    trainer = trained(
        tmp_path,
        num_turns=2,
        rollout_buffer_size=3,
        train_batch_size=2,
        num_train_epochs=9,
        max_steps=3,
    )
    told = summary(trainer)
    assert (told["state"], told["optimizer_steps"], told["prompts"]) == ("finished", [3, 3], 2)


def test_a_metric_ends_the_run(tmp_path: Path) -> None:
    trainer = trained(
        tmp_path, num_train_epochs=9, stop_metric="agent_0/steps", stop_value=1, logging_steps=4
    )
    told = summary(trainer)
    assert (told["state"], told["optimizer_steps"]) == ("finished", [2, 2])


def test_a_run_in_which_nothing_trains_ends_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S11: equal rewards, two dead groups a prompt; it does not go on for its nine epochs."""
    trainer = trainer_of(
        tmp_path,
        args=config_of(num_train_epochs=9, dead_groups_limit=6, wire_dtype="float32"),
        reward_func=lambda a, b: [0.5],
    )
    before = [weights(agent) for agent in trainer.agents]
    trainer.train()
    told = summary(trainer)
    assert (told["state"], told["optimizer_steps"], told["prompts"]) == ("finished", [0, 0], 3)
    said = capsys.readouterr().err
    assert "the run ends early: dead_groups_limit: the last 6 groups were dead" in said
    assert "look at the rewards" in said
    for agent, old in zip(trainer.agents, before, strict=True):
        assert all(torch.equal(p, q) for p, q in zip(agent.parameters(), old, strict=True))


def test_accumulation_takes_one_step_from_several_minibatches(tmp_path: Path) -> None:
    """Buffer 2, minibatches of 1: two steps a drain, or one from both."""
    settings = {"rollout_buffer_size": 2, "train_batch_size": 1}
    assert summary(trained(tmp_path / "1", **settings))["optimizer_steps"] == [2, 2]
    accumulated = trained(tmp_path / "2", **settings, gradient_accumulation_steps=2)
    assert summary(accumulated)["optimizer_steps"] == [1, 1]


def test_learner_and_engine_compute_in_the_same_format(tmp_path: Path) -> None:
    """Before any step their log-probabilities agree, whichever it is."""
    first = {}
    for compute in ("bfloat16", "float32"):
        trainer = trained(tmp_path / compute, compute_dtype=compute, agent_learning_rate=0.0)
        assert max(row["agent_0/logprob_gap_max"] for row in rows(trainer)) < 1e-4
        assert trainer.agents[0].dtype == torch.float32
        first[compute] = rows(trainer)[0]["agent_0/entropy"]
    assert abs(first["bfloat16"] - first["float32"]) > 1e-4  # the learner's rounding


def test_activation_checkpointing_changes_no_bit_of_a_run(tmp_path: Path) -> None:
    plain, recomputing = (
        trained(tmp_path / str(on), activation_checkpointing=on) for on in (False, True)
    )
    for one, other in zip(plain.agents, recomputing.agents, strict=True):
        pairs = zip(one.parameters(), other.parameters(), strict=True)
        assert all(torch.equal(p, q) for p, q in pairs)


def test_settings_that_do_not_fit_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match="trainable: got 3 of them, wanted one, or 2"):
        trainer_of(tmp_path, args=config_of(trainable=[True] * 3))
