"""A real language model through the whole system, once and short."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from examples.length_ratio import length_feedback, length_ratio_reward
from examples.smollm2 import prepare
from tests.e2e import reference
from tests.e2e.recording import record_generation
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphon.learner import MAGRPOConfig, MAGRPOTrainer

SAMPLING = reference.Settings(
    num_turns=2,
    num_generations=2,
    temperature=0.6,
    top_k=50,
    top_p=0.6,
    discount=1.0,
    threshold=None,
    learning_rate=5e-6,
    buffer_size=2,
)
"""The defaults of MAGRPOConfig."""


@pytest.mark.timeout(600)
def test_smollm2_trains_for_two_turns_and_both_agents_load_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = prepare()
    monkeypatch.chdir(tmp_path)
    recording = record_generation(monkeypatch)
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
            early_termination_threshold=None,
            logging_steps=1,
            checkpoint_interval=0,  # one takes 3 GB
        ),
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))

    start = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for agent, trained in enumerate(trainer.agents):
        # The first turn was sampled from the start weights, by another program with a cache.
        for completion in recording.batches[agent][0].completions:
            with torch.no_grad():
                expected, forced = reference.logprobs(start, completion, SAMPLING)
            assert forced == 0
            assert (torch.tensor(completion.logprobs) - expected).abs().max() < 1e-4
        saved = AutoModelForCausalLM.from_pretrained(
            tmp_path / "saved" / f"agent_{agent}", dtype=torch.float32
        )
        embedding = saved.get_input_embeddings().weight
        assert torch.equal(embedding, trained.get_input_embeddings().weight.float())
        assert not torch.equal(embedding, start.get_input_embeddings().weight)
