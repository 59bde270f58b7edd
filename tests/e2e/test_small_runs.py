"""Short runs at the edges: a context that fills up, datasets of other kinds, sparse logging."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, IterableDataset
from tests.e2e.conftest import Served
from tests.e2e.tiny_task import PROMPTS, as_reward_function, reward, transition
from tests.support import run_folders

from antiphon.learner import MAGRPOConfig, MAGRPOTrainer

SMALL = MAGRPOConfig(
    num_train_epochs=1,
    num_generations=2,
    max_new_tokens=6,
    agent_learning_rate=1e-2,
    temperature=1.0,
    top_k=None,
    top_p=None,
    early_termination_threshold=None,
    rollout_buffer_size=1,
    seed=3,
)


def make_trainer(
    served: Served,
    dataset: Any,
    *,
    num_agents: int = 2,
    context: int = 256,
    external_transition: Callable[..., Any] = transition,
    config: MAGRPOConfig = SMALL,
    **options: Any,
) -> MAGRPOTrainer:
    return MAGRPOTrainer(
        agents=[served.model(seed, context=context) for seed in range(num_agents)],
        tokenizer=served.tokenizer,
        reward_func=as_reward_function(reward, []),
        external_transition=external_transition,
        train_dataset=dataset,
        args=config,
        generation_addresses=served.addresses[:num_agents],
        **options,
    )


def test_an_iterable_dataset_trains_and_sparse_logging_records_every_turn(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L22: IterableDataset works. L20: with logging_steps 50 (the default) on a run of 18 joint
    actions every turn that happened is in the record. L18: N is that of the agents given, without
    num_agents.
    """
    monkeypatch.chdir(tmp_path)

    def rows() -> Any:
        for prompt in PROMPTS:
            yield {"prompt": prompt}

    trainer = make_trainer(served, IterableDataset.from_generator(rows), num_agents=3)
    start = [parameter.clone() for parameter in trainer.agents[2].parameters()]
    trainer.train()

    assert SMALL.logging_steps == 50
    metrics = run_folders.metrics(run_folders.find(tmp_path))
    assert run_folders.total(metrics, "turn_1/joint_actions") == 2 * 2
    assert run_folders.total(metrics, "turn_2/joint_actions") == 2 * 4
    assert {"turn_1/reward_mean", "turn_2/reward_mean", "turn_2/expected_return"} <= set(
        metrics[-1]
    )
    assert "agent_2/loss" in metrics[-1]
    assert len(trainer.agents) == 3
    assert any(
        not torch.equal(now, before)
        for now, before in zip(trainer.agents[2].parameters(), start, strict=True)
    )


def test_a_dataset_without_prompts_is_refused_at_start_with_its_columns(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L22: the error lists the columns."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"question, answer.*'prompt'"):
        make_trainer(served, Dataset.from_dict({"question": ["one"], "answer": ["two"]})).train()


def test_a_contradicting_number_of_agents_is_refused_at_start(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L18: a contradiction is an error at start."""
    monkeypatch.chdir(tmp_path)
    dataset = Dataset.from_dict({"prompt": PROMPTS})
    with pytest.raises(ValueError, match=r"formatters.*2.*3|3.*2"):
        make_trainer(
            served, dataset, num_agents=3, formatters=[lambda item: item["prompt"]] * 2
        ).train()


def test_a_prompt_longer_than_the_context_is_refused_at_start(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L12: 100 tokens for a context of 32."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"100.*32"):
        make_trainer(served, Dataset.from_dict({"prompt": ["a " * 99]}), context=32).train()


def test_a_branch_that_outgrows_the_context_ends_and_earlier_turns_still_train(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L12: a later prompt that leaves no room for max_new_tokens ends its branch as truncated."""
    monkeypatch.chdir(tmp_path)
    asked: list[list[str]] = []

    def growing(prompt: str, agent_completions: list[str], num_agents: int) -> list[str]:
        asked.append(agent_completions)
        # The begin token, 25 more and 6 new ones fill a context of 32.
        length = 25 if len(asked) == 1 else 26
        return [" ".join(["a"] * length)] * num_agents

    trainer = make_trainer(
        served,
        Dataset.from_dict({"prompt": ["a red cat"]}),
        context=32,
        external_transition=growing,
    )
    trainer.train()

    folder = run_folders.find(tmp_path)
    root, child = run_folders.rollouts(folder)
    assert [len(asked), root["path"], child["path"]] == [2, [], [0]]
    assert [joint["stop"] for joint in root["joint_actions"]] == [None, "truncated"]
    metrics = run_folders.metrics(folder)
    assert run_folders.total(metrics, "turn_1/stop/truncated") == 1
    assert run_folders.total(metrics, "agent_0/steps") == 2
