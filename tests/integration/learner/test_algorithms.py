"""The algorithms of the MAGRPO family through real local services: what is trained, and on what."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from tests.e2e.recording import record_generation
from tests.support import run_folders
from tests.support.models import tiny_model, tiny_tokenizer
from torch import nn

from antiphon.clients.types import FieldError
from antiphon.learner import (
    MAGRPOConfig,
    MAGRPOTrainer,
    MAREINFORCEConfig,
    MAREINFORCETrainer,
    MAReMaxConfig,
    MAReMaxTrainer,
    MARLOOConfig,
    MARLOOTrainer,
)

SMALL: dict[str, Any] = {
    "num_train_epochs": 1,
    "num_generations": 3,
    "num_turns": 1,
    "max_new_tokens": 6,
    "agent_learning_rate": 1e-2,
    "temperature": 1.0,
    "top_k": None,
    "top_p": None,
    "logging_steps": 1,
    "early_termination_threshold": None,
    "rollout_buffer_size": 2,
    "seed": 5,
}
ROWS = [{"prompt": "red green"}, {"prompt": "one two three"}]


def letters(*completions: list[str]) -> list[float]:
    return [float(sum(len(text[0]) for text in completions))]


def again(prompt: str, agent_completions: list[str], num_agents: int) -> list[str]:
    return [f"{prompt} again {agent_completions[agent]}" for agent in range(num_agents)]


def run(kind: type[MAGRPOTrainer], directory: Path, **options: Any) -> MAGRPOTrainer:
    tokenizer = tiny_tokenizer(directory / "tokenizer")
    given: dict[str, Any] = {
        "tokenizer": tokenizer,
        "reward_func": letters,
        "train_dataset": ROWS,
        "run_directory": directory / "runs",
        "wandb_config": {"verbose": False},
    }
    given |= options
    if "agents" not in given:
        given["agents"] = [tiny_model(tokenizer, seed) for seed in range(2)]
    trainer = kind(**given)
    trainer.train()
    return trainer


def metrics(trainer: MAGRPOTrainer) -> list[dict[str, Any]]:
    assert trainer.run_directory is not None
    return run_folders.metrics(trainer.run_directory)


def rollouts(trainer: MAGRPOTrainer) -> list[dict[str, Any]]:
    assert trainer.run_directory is not None
    rows: list[dict[str, Any]] = pq.read_table(trainer.run_directory / "rollouts").to_pylist()
    return rows


def summary_of(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def copies(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def moved(model: nn.Module, before: Sequence[torch.Tensor]) -> bool:
    return any(
        not torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True)
    )


@pytest.mark.parametrize(
    ("trainer", "config", "mode"),
    [
        (MARLOOTrainer, MARLOOConfig, "rloo"),
        (MAReMaxTrainer, MAReMaxConfig, "max"),
        (MAREINFORCETrainer, MAREINFORCEConfig, "raw"),
    ],
)
def test_the_other_trainers_train_on_their_own_baseline(
    tmp_path: Path, trainer: type[MAGRPOTrainer], config: type[MAGRPOConfig], mode: str
) -> None:
    made = run(trainer, tmp_path, args=config(**SMALL, advantage_normalization=False))
    assert made.args.advantage_mode == mode
    by_node: dict[int, list[dict[str, Any]]] = {}
    for row in rollouts(made):
        by_node.setdefault(row["row"], []).append(row)
    for node in by_node.values():
        for agent in range(2):
            returns = [row["agent_returns"][agent] for row in node]
            got = [row["advantages"][agent] for row in node]
            mean = sum(returns) / 3
            wanted = {
                "rloo": [1.5 * (r - mean) for r in returns],
                "max": [r - max(returns) for r in returns],
                "raw": returns,
            }[mode]
            assert got == pytest.approx(wanted)
            assert max(returns) > min(returns)


def test_a_config_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"args: got MAGRPOConfig with advantage_mode 'mean'.*"):
        run(MARLOOTrainer, tmp_path, args=MAGRPOConfig(**SMALL))
    assert MARLOOTrainer.config_class().advantage_mode == "rloo"
    with pytest.raises(ValueError, match=r"(?s)advantage_mode.*'rloo'"):
        MARLOOConfig(advantage_mode="mean")


def test_one_agent_is_grpo(tmp_path: Path) -> None:
    """The group's mean and standard deviation, over the completions of one prompt; two turns."""
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    agent = tiny_model(tokenizer, 0)
    before = copies(agent)
    trainer = run(
        MAGRPOTrainer,
        tmp_path,
        agents=[agent],
        external_transition=again,
        args=MAGRPOConfig(**{**SMALL, "num_turns": 2}),
    )
    assert trainer.num_agents == 1
    assert moved(agent, before)
    rows = [row for row in rollouts(trainer) if row["row"] == 0 and row["turn"] == 1]
    returns = torch.tensor([row["return"] for row in rows])
    wanted = (returns - returns.mean()) / returns.std(unbiased=False)
    assert [row["advantages"][0] for row in rows] == pytest.approx(wanted.tolist(), abs=1e-5)
    assert run_folders.total(metrics(trainer), "turn_2/nodes") == 2 * 3


def kl_by_hand(
    reference: nn.Module, policy: nn.Module, prompt: Sequence[int], ids: Sequence[int]
) -> float:
    total = 0.0
    with torch.no_grad():
        logprobs = [
            m(input_ids=torch.tensor([[*prompt, *ids]])).logits[0].double().log_softmax(-1)
            for m in (policy, reference)
        ]
    for c, token in enumerate(ids):
        now, start = (lp[len(prompt) + c - 1, token].item() for lp in logprobs)
        total += math.exp(start - now) - (start - now) - 1
    return total


@pytest.mark.parametrize("devices", [None, "offload"])
def test_a_reference_kl_is_paid_in_the_returns_of_each_agent(
    tmp_path: Path, devices: str | None
) -> None:
    """KL 0 at the start; after the first step that of the weights sampled from to the start's."""
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    agents = [tiny_model(tokenizer, seed) for seed in range(2)]
    starts = copy.deepcopy(agents)
    sampled_from: list[Any] = []

    def reward(a: list[str], b: list[str]) -> list[float]:
        sampled_from[:] = copy.deepcopy(agents)
        return letters(a, b)

    trainer = run(
        MAGRPOTrainer,
        tmp_path,
        agents=agents,
        reward_func=reward,
        args=MAGRPOConfig(
            **{**SMALL, "rollout_buffer_size": 1},
            joint_mode="cross",
            reference_kl_enabled=True,
            reference_kl_coef=0.5,
            reference_devices=devices,
            advantage_normalization=False,
            wire_dtype="float32",
        ),
    )
    rows = rollouts(trainer)
    first = [row for row in rows if row["row"] == 0]
    assert all(kl == pytest.approx(0, abs=1e-6) for row in first for kl in row["reference_kls"])
    later = [row for row in rows if row["row"] == 1]
    prompt = tokenizer("one two three").input_ids
    means = []
    for agent in range(2):
        by_sample: dict[int, list[dict[str, Any]]] = {}
        for row in later:
            by_sample.setdefault(row["samples"][agent], []).append(row)
        kls = []
        for joint in by_sample.values():
            kl = joint[0]["reference_kls"][agent]
            ids = joint[0]["token_ids"][agent]
            wanted = kl_by_hand(starts[agent], sampled_from[agent], prompt, ids)
            assert wanted > 1e-4
            assert kl == pytest.approx(wanted, rel=1e-3)
            mean = sum(row["return"] for row in joint) / len(joint)
            assert joint[0]["agent_returns"][agent] == pytest.approx(mean - 0.5 * kl, abs=1e-6)
            kls.append(kl)
        assert len(kls) == 3
        means.append(sum(kls) / 3)
    row = metrics(trainer)[-1]
    assert row["turn_1/reference_kl_mean"] == pytest.approx(sum(means) / 2)
    assert row["turn_1/reference_kl_penalty_mean"] == pytest.approx(0.5 * sum(means) / 2)
    for agent in range(2):
        assert row[f"agent_{agent}/turn_1/reference_kl_mean"] == pytest.approx(means[agent])
    returns = [row["return"] for row in later]
    assert row["turn_1/expected_return"] == pytest.approx(sum(returns) / len(returns))


def test_a_reference_kl_in_the_loss_leaves_returns_and_holds_the_policy_back(
    tmp_path: Path,
) -> None:
    def trained(coef: float) -> tuple[MAGRPOTrainer, float]:
        trainer = run(
            MAGRPOTrainer,
            tmp_path / str(coef),
            args=MAGRPOConfig(
                **{**SMALL, "num_train_epochs": 4, "agent_learning_rate": 3e-3},
                reference_kl_enabled=True,
                reference_kl_coef=coef,
                reference_kl_mode="loss",
            ),
        )
        later = [row["turn_1/reference_kl_mean"] for row in metrics(trainer)[4:]]
        return trainer, sum(later) / len(later)

    (held, held_kl), (_, free_kl) = trained(50.0), trained(1e-6)
    for row in rollouts(held):
        assert row["agent_returns"] == [row["return"]] * 2
    assert metrics(held)[-1]["agent_0/reference_kl_loss"] > 0
    assert "turn_1/reference_kl_penalty_mean" not in metrics(held)[-1]
    assert held_kl < free_kl / 2


def test_agents_may_differ_in_model_tokenizer_and_learning_rate(tmp_path: Path) -> None:
    words = tiny_tokenizer(tmp_path / "words")
    more = tiny_tokenizer(tmp_path / "bytes", kind="bytes")
    agents = [
        tiny_model(words, 0, context=128),
        tiny_model(more, 1, tie=False),
        tiny_model(words, 2),
    ]
    before = [copies(agent) for agent in agents]
    trainer = run(
        MAGRPOTrainer,
        tmp_path,
        agents=agents,
        tokenizer=[words, more, words],
        external_transition=again,
        args=MAGRPOConfig(
            **{**SMALL, "num_turns": 2, "agent_learning_rate": [1e-2, 1e-3, 0]},
            wire_dtype="float32",
        ),
    )
    assert [moved(a, b) for a, b in zip(agents, before, strict=True)] == [True, True, False]
    beyond = False
    for row in rollouts(trainer):
        for agent, tokenizer in enumerate(trainer.tokenizers):
            assert max(row["token_ids"][agent]) < len(tokenizer)
            if agent != 1:  # words: each is a token, so a text is its tokens
                text = tokenizer.decode(row["token_ids"][agent], skip_special_tokens=True)
                assert row["texts"][agent] == text
            beyond = beyond or max(row["token_ids"][agent]) >= len(words)
    assert beyond  # agent 1 speaks tokens that the others do not have
    largest = [
        max((p - q).abs().max().item() for p, q in zip(a.parameters(), b, strict=True))
        for a, b in zip(agents, before, strict=True)
    ]
    assert largest[0] > 5 * largest[1]


def test_cross_over_two_turns_pairs_all_and_returns_flow_back_by_hand(tmp_path: Path) -> None:
    """Two agents, two samples: four joint actions a node, each with a child of four."""
    trainer = run(
        MAGRPOTrainer,
        tmp_path,
        external_transition=again,
        train_dataset=ROWS[:1],
        args=MAGRPOConfig(
            **{**SMALL, "num_turns": 2, "num_generations": 2},
            joint_mode="cross",
            discount=0.5,
            advantage_normalization=False,
            wire_dtype="float32",
        ),
    )
    by_path: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    for row in rollouts(trainer):
        by_path.setdefault(tuple(row["path"]), []).append(row)
    assert set(by_path) == {(), (0,), (1,), (2,), (3,)}
    for path, joint in by_path.items():
        assert [row["samples"] for row in joint] == [[0, 0], [0, 1], [1, 0], [1, 1]]
        for j, row in enumerate(joint):
            assert row["reward"] == sum(map(len, row["texts"]))
            child = by_path.get((*path, j), [])
            later = 0.5 * sum(r["reward"] for r in child) / 4 if child else 0.0
            assert row["return"] == pytest.approx(row["reward"] + later)
        for agent in (0, 1):
            held = [[r["return"] for r in joint if r["samples"][agent] == g] for g in (0, 1)]
            own = [sum(returns) / 2 for returns in held]
            mean = sum(own) / 2
            for row in joint:
                value = own[row["samples"][agent]]
                assert row["agent_returns"][agent] == pytest.approx(value)
                assert row["advantages"][agent] == pytest.approx(value - mean)


def test_agents_with_templates_of_their_own_are_each_asked_in_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One chat, two templates; what each agent was sampled on is its own template's text."""
    first = tiny_tokenizer(tmp_path / "first")
    second = tiny_tokenizer(tmp_path / "second")
    second.chat_template = (
        "{% for m in messages %}green {{ m.content }} {% endfor %}"
        "{% if add_generation_prompt %}cat {% endif %}"
    )
    chat = [{"role": "user", "content": "red one"}]
    recording = record_generation(monkeypatch)
    run(
        MAGRPOTrainer,
        tmp_path,
        agents=[tiny_model(first, 0), tiny_model(second, 1)],
        tokenizer=[first, second],
        train_dataset=[{"prompt": chat}],
        args=MAGRPOConfig(**SMALL, wire_dtype="float32"),
    )
    asked = []
    for agent, tokenizer in enumerate((first, second)):
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        wanted = tuple(tokenizer(text, add_special_tokens=False).input_ids)
        (batch,) = recording.batches[agent]
        assert {completion.prompt_token_ids for completion in batch.completions} == {wanted}
        asked.append(wanted)
    assert asked[0] != asked[1]


def test_the_number_of_learning_rates_is_that_of_the_agents(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"agent_learning_rate: got 3 of them, wanted one, or 2"):
        run(
            MAGRPOTrainer,
            tmp_path,
            args=MAGRPOConfig(**{**SMALL, "agent_learning_rate": [1e-2, 1e-3, 0]}),
        )
