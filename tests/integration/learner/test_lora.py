"""Agents with LoRA adapters: whole runs, and a policy against a real service."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from tests.integration.learner.test_script_runs import CONFIG, trainer_of
from tests.integration.services.generation.harness import IDS, TIMEOUT, replica
from tests.support.lora import peft_model
from tests.support.models import tiny_folder, tiny_model, tiny_tokenizer
from tests.support.trees import make_sample
from torch import Tensor
from transformers import AutoModelForCausalLM

from antiphon.clients.types import FieldError, TensorDtype
from antiphon.learner import MAGRPOConfig, MAGRPOTrainer
from antiphon.learner.policy.policy import Policy, PolicySettings
from antiphon.learner.record.run_folder import RunFolder
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import Replica, Replicas, RunIdentity
from antiphon.services.common.models import load_model

LORA = {"r": 2, "alpha": 4, "target_modules": ["q_proj", "v_proj"]}


def config_of(**settings: Any) -> MAGRPOConfig:
    """One node a step and a publish after each: every step begins at the weights sampled from."""
    fixed = {"num_turns": 1, "rollout_buffer_size": 1, "agent_learning_rate": 5e-2}
    return CONFIG.replace(**{"lora": LORA, **fixed, **settings})


def rows(trainer: MAGRPOTrainer) -> list[dict[str, Any]]:
    assert trainer.run_directory is not None
    lines = RunFolder.open(trainer.run_directory).metrics_file.read_text().splitlines()
    return [json.loads(line) for line in lines]


def base_weights(model: Any) -> dict[str, Tensor]:
    """Without an adapter's, by the base's names."""
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    named = {n.replace(".base_layer.", "."): p for n, p in base.named_parameters()}
    return {n: p.detach().clone() for n, p in named.items() if ".lora_" not in n}


def adapter(model: Any) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters() if ".lora_" in n}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(t, other[n]) for n, t in one.items())


def test_a_run_trains_and_pushes_the_adapter_alone(tmp_path: Path) -> None:
    """Agent 0 through LoRA, agent 1 whole; the base is bitwise what it was."""
    trainer = trainer_of(tmp_path, args=config_of(lora=[LORA, "none"], wire_dtype="float32"))
    before = [base_weights(agent) for agent in trainer.agents]
    start = adapter(trainer.agents[0])
    trainer.train()
    first, second = trainer.agents
    assert isinstance(first, PeftModel)
    assert not isinstance(second, PeftModel)
    assert same(base_weights(first), before[0])
    assert not same(base_weights(second), before[1])
    assert not same(adapter(first), start)
    pushed = [row["agent_0/push_bytes"] for row in rows(trainer)]
    numbers = sum(p.numel() for p in start.values())
    scalings = len(start) // 2
    whole = sum(p.numel() for p in before[0].values()) + numbers
    # The child had no base: it came with the first adapter, and adapters alone after that.
    assert pushed[0] == 4 * (whole + scalings) + 4 * (numbers + scalings)
    assert set(pushed[1:]) == {4 * (numbers + scalings)}
    assert max(row["agent_0/logprob_gap_max"] for row in rows(trainer)) < 1e-4


@pytest.mark.parametrize("tie", [True, False])
def test_peft_models_of_the_caller_are_trained_in_place_at_the_default_wire(
    tmp_path: Path, tie: bool
) -> None:
    """An adapter of the head too; learner and engine agree with tied heads and without."""
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    given = [
        peft_model(tiny_model(tokenizer, seed, tie), seed, targets=["q_proj", "lm_head"])
        for seed in range(2)
    ]
    before = [adapter(model) for model in given]
    trainer = trainer_of(tmp_path, agents=given, tokenizer=tokenizer, args=config_of(lora=None))
    trainer.train()
    for agent, (model, old) in enumerate(zip(given, before, strict=True)):
        assert trainer.agents[agent] is model
        assert not same(adapter(model), old)
        assert max(row[f"agent_{agent}/logprob_gap_max"] for row in rows(trainer)) < 1e-4
        for name, tensor in {**base_weights(model), **adapter(model)}.items():
            assert torch.equal(tensor, tensor.to(torch.bfloat16).float()), name


def test_saved_adapters_load_onto_their_base(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, args=config_of(wire_dtype="float32"))
    bases = [tiny_model(tiny_tokenizer(tmp_path / "again"), seed) for seed in range(2)]
    trainer.train()
    trainer.save_model(tmp_path / "saved", merge_adapters=True)
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        for agent, (model, base) in enumerate(zip(trainer.agents, bases, strict=True)):
            folder = tmp_path / "saved" / f"agent_{agent}"
            wanted = model(input_ids=ids).logits
            loaded = PeftModel.from_pretrained(base, folder).eval()
            assert torch.equal(loaded(input_ids=ids).logits, wanted)
            whole = AutoModelForCausalLM.from_pretrained(folder / "merged").eval()
            torch.testing.assert_close(whole(input_ids=ids).logits, wanted, atol=1e-5, rtol=1e-5)


def test_a_resumed_run_ends_with_the_adapters_of_one_that_was_not_stopped(tmp_path: Path) -> None:
    """Checkpoints hold the adapter and its moments; the base is the one that is given again."""
    settings = {"wire_dtype": "float32", "checkpoint_interval": 1}
    whole = trainer_of(tmp_path / "whole", args=config_of(num_train_epochs=2, **settings))
    whole.train()
    half = trainer_of(tmp_path / "half", args=config_of(num_train_epochs=1, **settings))
    half.train()
    assert half.run_directory is not None
    files = list((half.run_directory / "checkpoints").glob("*/policy_0.safetensors"))
    weights = sum(p.numel() for p in adapter(half.agents[0]).values())
    assert 3 * 4 * weights <= files[0].stat().st_size < 3 * 4 * weights + 10_000
    resumed = trainer_of(tmp_path / "half", args=config_of(num_train_epochs=2, **settings))
    resumed.train(resume_from_checkpoint=half.run_directory)
    for one, other in zip(whole.agents, resumed.agents, strict=True):
        assert same(adapter(one), adapter(other))
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    others = [tiny_model(tokenizer, seed) for seed in (5, 6)]
    wrong = trainer_of(
        tmp_path / "half", agents=others, args=config_of(num_train_epochs=3, **settings)
    )
    with pytest.raises(FieldError, match="must be that of the run's first model"):
        wrong.train(resume_from_checkpoint=half.run_directory)


def greedy(model: Any, tokens: int) -> tuple[int, ...]:
    """What a model says without a cache."""
    ids = list(IDS.ids)
    for _ in range(tokens):
        with torch.no_grad():
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] == model.config.eos_token_id:
            break
    return tuple(ids[len(IDS.ids) :])


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("wire", list(TensorDtype))
async def test_a_service_follows_the_adapter_step_by_step(
    tmp_path: Path, wire: TensorDtype, weights: bool
) -> None:
    """It says greedily what the learner's model says, after every push, with the base or not."""
    folder = tiny_folder(tmp_path / "model", seed=0)
    model = peft_model(load_model(folder, dtype=torch.float32), 3)
    settings = PolicySettings(temperature=1.0, max_new_tokens=8, learning_rate=0.3)
    policy = Policy(0, model, settings, wire_dtype=wire)
    said = set()
    async with replica(folder, weights=weights, weights_dtype=wire) as r:
        publisher = AgentPublisher(
            RunIdentity("run", 1),
            0,
            policy.wire_weights(),
            Replicas([Replica(r.server.address, r.client)]),
            timeout=TIMEOUT,
        )
        for step in range(4):
            published = await publisher.publish()
            (completion,) = await r.generate(IDS, version=published.version)
            assert completion.token_ids == greedy(model, 8)
            said.add(completion.token_ids)
            better = make_sample(
                IDS.ids,
                [([9 + step, 2], 1.0), ([20 + step, 2], -1.0)],
                logprobs=[[-3.0, -3.0]] * 2,
                kept_sizes=[[29, 29]] * 2,
            )
            assert policy.step([better]).stepped
        before = copy.deepcopy(r.engine.model.state_dict())
        await publisher.publish()
        assert same(dict(r.engine.model.state_dict()), dict(before))
    assert len(said) > 1


def test_settings_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    make: list[tuple[Callable[[], Any], str]] = [
        (lambda: config_of(lora={"dropout": 0.1}), r"dropout.*got 0\.1, wanted 0"),
        (lambda: config_of(lora={"rank": 2}), "rank"),
        (
            lambda: trainer_of(tmp_path, args=config_of(lora=[LORA] * 3)),
            "lora: got 3 of them, wanted one, or 2",
        ),
    ]
    for call, text in make:
        with pytest.raises(ValueError, match=f"(?s){text}"):
            call()
