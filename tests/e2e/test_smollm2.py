"""A real language model through the whole system, once and short."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from examples.length_ratio import length_feedback, length_ratio_reward
from examples.smollm2 import prepare
from tests.support import run_folders
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphon.learner import MAGRPOConfig, MAGRPOTrainer


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_smollm2_trains_for_two_turns_and_both_agents_load_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = prepare()
    monkeypatch.chdir(tmp_path)
    trainer = MAGRPOTrainer(
        agent_model=str(model),
        num_agents=2,
        tokenizer=AutoTokenizer.from_pretrained(model),
        reward_func=length_ratio_reward,
        external_transition=length_feedback,
        train_dataset=Dataset.from_dict({"prompt": ["Design a playground on Mars:"]}),
        args=MAGRPOConfig(
            num_turns=2,
            num_train_epochs=1,
            num_generations=2,
            max_new_tokens=8,
            agent_learning_rate=1e-4,
            early_termination_threshold=None,
            logging_steps=1,
        ),
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))

    rows = run_folders.metrics(run_folders.find(tmp_path))
    for agent in (0, 1):
        # What the engine sampled from is what the learner computes: no drift over 135M parameters,
        # 30 layers and left padding. Later steps see moved weights, so the smallest gap counts.
        gaps = [r[f"agent_{agent}/logprob_gap_max"] for r in rows if f"agent_{agent}/steps" in r]
        assert min(gaps) < 5e-2
        assert run_folders.total(rows, f"agent_{agent}/forced_tokens") == 0

    start = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for agent, trained in enumerate(trainer.agents):
        saved = AutoModelForCausalLM.from_pretrained(
            tmp_path / "saved" / f"agent_{agent}", dtype=torch.float32
        )
        embedding = saved.get_input_embeddings().weight
        assert torch.equal(embedding, trained.get_input_embeddings().weight.float())
        assert not torch.equal(embedding, start.get_input_embeddings().weight)
