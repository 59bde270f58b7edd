"""Training improves what it is meant to improve: the mean reward of a task that can be learnt."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
from datasets import Dataset
from tests.e2e.conftest import Served
from tests.e2e.tiny_task import transition

from antiphon.learner import MAGRPOConfig, MAGRPOTrainer

EPOCHS, GENERATIONS = 12, 4
JOINT_ACTIONS = GENERATIONS + GENERATIONS**2
SEEDS = (1, 2, 3)


def share_of_a(first: str, second: str) -> float:
    """Share of the word "a" in both agents' words together."""
    words = f"{first} {second}".split()
    return words.count("a") / max(len(words), 1)


def rise(seed: int, learning_rate: float, served: Served) -> float:
    """Mean reward of the last quarter of the prompts less that of the first quarter."""
    rewards: list[float] = []

    def reward(first: list[str], second: list[str]) -> list[float]:
        values = [share_of_a(a, b) for a, b in zip(first, second, strict=True)]
        rewards.extend(values)
        return values

    trainer = MAGRPOTrainer(
        agents=[served.model(10 * seed + agent, spread=0.05) for agent in range(2)],
        tokenizer=served.tokenizer,
        reward_func=reward,
        external_transition=transition,
        train_dataset=Dataset.from_dict({"prompt": ["one red cat sings"]}),
        args=MAGRPOConfig(
            num_train_epochs=EPOCHS,
            num_generations=GENERATIONS,
            max_new_tokens=6,
            agent_learning_rate=learning_rate,
            temperature=1.0,
            top_k=None,
            top_p=None,
            early_termination_threshold=None,
            wire_dtype="float32",
            seed=seed,
        ),
        generation_addresses=served.addresses[:2],
    )
    trainer.train()
    assert len(rewards) == EPOCHS * JOINT_ACTIONS
    quarter = len(rewards) // 4
    return fmean(rewards[-quarter:]) - fmean(rewards[:quarter])


def test_the_mean_reward_rises_and_without_a_learning_rate_it_does_not(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trained = [rise(seed, 2e-2, served) for seed in SEEDS]
    untrained = [rise(seed, 0.0, served) for seed in SEEDS]

    assert min(trained) > 0.4, trained
    assert max(map(abs, untrained)) < 0.1, untrained
