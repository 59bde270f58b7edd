"""A run whose pushes are deltas is, bit for bit, the run whose pushes are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tests.e2e.conftest import Served
from tests.e2e.tiny_task import PROMPTS, as_reward_function, reward, transition
from tests.support import run_folders

from antiphon.learner import MAGRPOConfig, MAGRPOTrainer


def trained(served: Served, folder: Path, **changes: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Weights of both agents, every completion's text, and the rows of metrics."""
    config = MAGRPOConfig(
        num_train_epochs=3,
        num_generations=4,
        max_new_tokens=6,
        agent_learning_rate=2e-5,
        temperature=1.0,
        top_k=None,
        top_p=None,
        early_termination_threshold=None,
        rollout_buffer_size=1,
        seed=3,
        logging_steps=1,
        **changes,
    )
    texts: list[tuple[str, ...]] = []
    trainer = MAGRPOTrainer(
        agents=[served.model(seed, context=256) for seed in range(2)],
        tokenizer=served.tokenizer,
        reward_func=as_reward_function(reward, texts),
        external_transition=transition,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        args=config,
        generation_addresses=served.addresses[:2],
    )
    trainer.train()
    weights = [dict(agent.state_dict()) for agent in trainer.agents]
    return weights, texts, run_folders.metrics(run_folders.find(folder))


def test_a_run_with_deltas_ends_bitwise_like_one_with_full_pushes(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2: every sample and every weight; only the bytes on the way differ."""
    folders = [tmp_path / "whole", tmp_path / "delta"]
    for folder in folders:
        folder.mkdir()
    monkeypatch.chdir(folders[0])
    whole, whole_texts, whole_rows = trained(served, folders[0], delta_pushes=False)
    monkeypatch.chdir(folders[1])
    delta, delta_texts, delta_rows = trained(served, folders[1])
    assert sorted(delta_texts) == sorted(whole_texts)
    for one, other in zip(delta, whole, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    for agent in range(2):
        start = served.model(agent, context=256).state_dict()
        assert any(not torch.equal(start[name], delta[agent][name]) for name in start)
        name = f"agent_{agent}/push_bytes"
        last = f"agent_{agent}/weights_version"
        assert delta_rows[-1][last] == whole_rows[-1][last] > 5
        assert run_folders.total(delta_rows, name) < run_folders.total(whole_rows, name) / 3
