"""A script's `train()`: real child services, the script's own functions, and nothing left over."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.support import run_folders
from tests.support.models import tiny_model, tiny_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphon.clients.errors import CallError
from antiphon.clients.types import FieldError
from antiphon.learner import MAGRPOConfig, MAGRPOTrainer
from antiphon.learner.run.children import ChildError

CONFIG = MAGRPOConfig(
    num_train_epochs=1,
    num_generations=2,
    max_new_tokens=6,
    agent_learning_rate=1e-2,
    temperature=1.0,
    top_k=None,
    top_p=None,
    logging_steps=1,
    early_termination_threshold=None,
    seed=5,
)


def length_gap(a: list[str], b: list[str]) -> list[float]:
    return [float(len(b[0]) - len(a[0]))]


def again(prompt: str, agent_completions: list[str], num_agents: int) -> list[str]:
    return [f"{prompt} again {agent_completions[agent]}" for agent in range(num_agents)]


def trainer_of(directory: Path, **options: Any) -> MAGRPOTrainer:
    tokenizer = tiny_tokenizer(directory / "tokenizer")
    given: dict[str, Any] = {
        "agents": [tiny_model(tokenizer, seed) for seed in range(2)],
        "tokenizer": tokenizer,
        "reward_func": length_gap,
        "external_transition": again,
        "train_dataset": [{"prompt": "red green"}, {"prompt": "one two three"}],
        "args": CONFIG,
        "run_directory": directory / "runs",
    }
    return MAGRPOTrainer(**{**given, **options})


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def weights(trainer: MAGRPOTrainer) -> list[torch.Tensor]:
    return [p.detach().clone() for agent in trainer.agents for p in agent.parameters()]


def equal(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@dataclass
class Trained:
    """A whole run of a script with formatters and a reward processor, trained once."""

    trainer: MAGRPOTrainer
    models: list[Any]
    before: list[torch.Tensor]
    seen: list[tuple[str, str]]
    raw: list[float]
    left_over: list[psutil.Process]

    @property
    def folder(self) -> Path:
        assert self.trainer.run_directory is not None
        return self.trainer.run_directory


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    seen: list[tuple[str, str]] = []
    raw: list[float] = []

    def reward(a: list[str], b: list[str]) -> list[float]:
        seen.append((a[0], b[0]))
        return length_gap(a, b)

    def halve(value: float) -> float:
        raw.append(value)
        return value / 2

    trainer = trainer_of(
        tmp_path_factory.mktemp("trained"),
        reward_func=reward,
        reward_processor=halve,
        formatters=[
            lambda item: f"one {item['prompt']}",
            lambda item, external_prompts=None: external_prompts or f"two {item['prompt']}",
        ],
    )
    models, before = list(trainer.agents), weights(trainer)
    trainer.train()
    return Trained(trainer, models, before, seen, raw, children())


def test_the_scripts_own_models_are_trained_in_place_and_no_child_is_left(
    trained: Trained,
) -> None:
    assert trained.left_over == []
    assert all(m is a for m, a in zip(trained.models, trained.trainer.agents, strict=True))
    assert not equal(trained.before, weights(trained.trainer))


def test_closures_see_every_joint_action_that_the_record_holds(trained: Trained) -> None:
    rows = run_folders.metrics(trained.folder)
    assert run_folders.total(rows, "turn_2/joint_actions") == 2 * 2 * 2
    assert len(trained.seen) == len(trained.raw) == 2 * (2 + 2 * 2)
    recorded = [
        tuple(
            agent["completions"][sample]["text"]
            for agent, sample in zip(node["agents"], action["samples"], strict=True)
        )
        for node in run_folders.rollouts(trained.folder)
        for action in node["joint_actions"]
    ]
    assert sorted(recorded) == sorted(trained.seen)


def test_formatters_and_reward_processor_shape_what_is_asked_and_trained_on(
    trained: Trained,
) -> None:
    root, child, *_ = run_folders.rollouts(trained.folder)
    assert [agent["prompt"] for agent in root["agents"]] == ["one red green", "two red green"]
    text = root["agents"][0]["completions"][0]["text"]
    assert child["agents"][0]["prompt"] == f"one red green again {text}"
    assert child["agents"][1]["prompt"].startswith("red green again")
    actions = root["joint_actions"]
    assert [action["reward"] for action in actions] == [action["score"] / 2 for action in actions]


def test_the_first_push_is_version_1_and_every_rollout_batch_adds_one(trained: Trained) -> None:
    summary = json.loads((trained.folder / "summary.json").read_text())
    assert summary["state"] == "finished"
    assert summary["weights_versions"] == [3, 3]
    identity = json.loads((trained.folder / "run.json").read_text())
    assert identity["incarnation"] == 1


def test_saved_models_load_and_answer_as_the_trained_ones(trained: Trained, tmp_path: Path) -> None:
    trained.trainer.save_model(tmp_path)
    for number, agent in enumerate(trained.trainer.agents):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / f"agent_{number}")
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / f"agent_{number}")
        ids = tokenizer("red green", return_tensors="pt").input_ids
        assert torch.equal(loaded(ids).logits, agent(ids).logits)


def test_an_exception_in_the_reward_stops_the_run_with_the_users_traceback(tmp_path: Path) -> None:
    def spoiled(a: list[str], b: list[str]) -> list[float]:
        return [1 / 0]

    trainer = trainer_of(tmp_path, reward_func=spoiled)
    before = weights(trainer)
    with pytest.raises(CallError, match=r"(?s)spoiled.*return \[1 / 0\].*ZeroDivisionError"):
        trainer.train()
    assert children() == []
    assert equal([w.bfloat16() for w in before], [w.bfloat16() for w in weights(trainer)])
    assert trainer.run_directory is not None
    summary = json.loads((trainer.run_directory / "summary.json").read_text())
    assert summary["state"] == "failed"
    assert "ZeroDivisionError" in summary["error"]
    call = json.loads((trainer.run_directory / "last_call.json").read_text())
    assert "spoiled" in call["function"]
    assert call["joint_action_ids"] == ["train/1/0/0"]


@pytest.mark.parametrize("hangs", [False, True])
def test_a_reward_that_fails_is_missing_where_that_is_configured(
    tmp_path: Path, hangs: bool
) -> None:
    """U7, U2: the others are asked for, and count."""
    calls: list[int] = []

    def sometimes(a: list[str], b: list[str]) -> list[float]:
        calls.append(1)
        while len(calls) == 1:
            if not hangs:
                raise ValueError("the first one fails")
            time.sleep(0.01)
        return length_gap(a, b)

    args = CONFIG.replace(on_score_failure="missing", num_turns=1, score_timeout=0.5)
    trainer = trainer_of(tmp_path, reward_func=sometimes, args=args)
    trainer.train()
    assert trainer.run_directory is not None
    rows = run_folders.metrics(trainer.run_directory)
    assert run_folders.total(rows, "turn_1/missing_rewards") == 1
    assert len(calls) == 4


def test_a_missing_reward_ends_the_run_where_that_is_configured(tmp_path: Path) -> None:
    calls: list[int] = []

    def unsure(a: list[str], b: list[str]) -> list[float | None]:
        calls.append(1)
        return [None if len(calls) == 2 else 1.0]

    trainer = trainer_of(
        tmp_path, reward_func=unsure, args=CONFIG.replace(on_missing_score="stop", num_turns=1)
    )
    said = r"reward of joint action train/1/0/1 of turn 1: got none \(.*on_missing_score is 'stop'"
    with pytest.raises(FieldError, match=said):
        trainer.train()
    assert trainer.run_directory is not None
    summary = json.loads((trainer.run_directory / "summary.json").read_text())
    assert summary["state"] == "failed"
    assert "train/1/0/1 of turn 1" in summary["error"]


def test_a_reward_that_never_returns_ends_the_run_by_name(tmp_path: Path) -> None:
    """U7: the deadline ends the call, and the error says which function and joint action."""

    def endless(a: list[str], b: list[str]) -> list[float]:
        while True:
            time.sleep(0.01)

    trainer = trainer_of(tmp_path, reward_func=endless, args=CONFIG.replace(score_timeout=0.5))
    with pytest.raises(CallError, match=r"endless.*train/1/0/0.*did not return within 0.5 s"):
        trainer.train()
    assert children() == []


def test_a_child_that_dies_in_the_middle_ends_the_run_with_its_name_and_log(tmp_path: Path) -> None:
    def murderous(a: list[str], b: list[str]) -> list[float]:
        for child in children():
            child.kill()
        return length_gap(a, b)

    trainer = trainer_of(tmp_path, reward_func=murderous)
    with pytest.raises(ChildError, match=r"service of agent \d ended with code -9.*generation_\d"):
        trainer.train()
    assert children() == []


def test_rewards_by_address_and_by_function_train_the_same_weights(
    tmp_path: Path, processes: Any
) -> None:
    (tmp_path / "judging.py").write_text(
        "def length_gap(a, b):\n    return [float(len(b[0]) - len(a[0]))]\n"
    )
    judge = processes.serve("judge", "reward", "judging:length_gap", cwd=tmp_path)
    one = trainer_of(tmp_path / "one")
    one.train()
    two = trainer_of(tmp_path / "two", reward_func=None, reward_address=judge.address())
    two.train()
    assert equal(weights(one), weights(two))
    assert judge.popen.poll() is None  # what the run did not start stays
