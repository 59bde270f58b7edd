"""Evaluation in runs with real local services: it measures, and training never notices."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from datasets import IterableDataset
from tests.support import run_folders
from tests.support.models import tiny_folder, tiny_model, tiny_tokenizer
from tests.support.processes import Processes
from transformers import AutoModelForCausalLM

from antiphon.clients.learner import LearnerClient
from antiphon.clients.types import EvaluationResult
from antiphon.learner import MAGRPOConfig, MAGRPOTrainer
from antiphon.learner.config.run_file import load_run_config
from antiphon.learner.run.toml_run import setup_from_config

SMALL: dict[str, Any] = {
    "num_train_epochs": 1,
    "num_generations": 2,
    "num_turns": 2,
    "max_new_tokens": 5,
    "agent_learning_rate": 1e-2,
    "temperature": 1.0,
    "top_k": None,
    "top_p": None,
    "early_termination_threshold": None,
    "advantage_normalization": False,  # of two completions it would leave the sign only
    "eval_interval": 2,
    "eval_num_samples": 2,
    "wire_dtype": "float32",
    "logging_steps": 1,
    "seed": 3,
}
TRAIN = [{"prompt": "red green"}, {"prompt": "one two three"}, {"prompt": "cat"}]


def held_out() -> Iterator[dict[str, str]]:
    """Rows that draw from the process's generator, as a shuffled stream does."""
    while True:
        yield {"prompt": random.choice(["dog sings", "blue"])}


class Reward:
    """Draws from the process's generator too, so a draw too many would change what is trained."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.in_training: Callable[[], None] = lambda: None

    def __call__(
        self, texts: list[str], phases: Sequence[str], turns: Sequence[int]
    ) -> list[float]:
        self.phases += phases
        if phases[0] == "train":
            self.in_training()
        # One node only has turn 1, so the draws of training always come in the same order.
        return [len(texts[0]) + (random.random() if turns[0] == 1 else 0.0)]


def again(prompt: str, agent_completions: list[str], num_agents: int) -> list[str]:
    return [f"{prompt} again"] * num_agents


def make(folder: Path, reward: Any, **options: Any) -> MAGRPOTrainer:
    tokenizer = tiny_tokenizer(folder / "tokenizer")
    given: dict[str, Any] = {
        "agents": [tiny_model(tokenizer, 0)],
        "tokenizer": tokenizer,
        "reward_func": reward,
        "external_transition": again,
        "train_dataset": TRAIN,
        "run_directory": folder / "runs",
        "wandb_config": {"verbose": False},
        "args": MAGRPOConfig(**SMALL),
    }
    return MAGRPOTrainer(**{**given, **options})


def weights(trainer: MAGRPOTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.agents[0].state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def evaluations(trainer: MAGRPOTrainer) -> list[dict[str, Any]]:
    assert trainer.run_directory is not None
    rows = run_folders.metrics(trainer.run_directory)
    return [row for row in rows if "eval/number" in row]


class Asking:
    """Asks the run for an evaluation while it is paused, from a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread: threading.Thread | None = None
        self.results: list[EvaluationResult] = []

    def pause_and_ask(self) -> None:
        """In the first reward of training, on the main thread."""
        if self._thread is None:
            (file,) = self._folder.glob("runs/*/learner.json")
            address = json.loads(file.read_text())["address"]
            asyncio.run(self._pause(address))
            self._thread = threading.Thread(target=lambda: asyncio.run(self._ask(address)))
            self._thread.start()

    async def _pause(self, address: str) -> None:
        async with LearnerClient(address) as client:
            await client.pause(20)

    async def _ask(self, address: str) -> None:
        async with LearnerClient(address) as client:
            try:
                self.results = [result async for result in client.evaluate(1, timeout=60)]
            finally:
                await client.resume(20)

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(60)


def test_training_is_bitwise_the_same_with_and_without_evaluation(tmp_path: Path) -> None:
    """L19: trees of a stream, evaluated at the start, on the way, by request and at the end."""
    random.seed(1)
    plain = make(tmp_path / "plain", Reward())
    plain.train()

    random.seed(1)
    reward, asking = Reward(), Asking(tmp_path / "evaluated")
    reward.in_training = asking.pause_and_ask
    evaluated = make(
        tmp_path / "evaluated",
        reward,
        eval_dataset=IterableDataset.from_generator(held_out),
        eval_logger=lambda agent_completions_turns, batch_items, prompts: agent_completions_turns,
        eval_aggregator=lambda metrics, num_turns: {"paths": len(metrics[0])},
        args=MAGRPOConfig(
            **SMALL,
            eval_mode="tree",
            eval_temperature=0.5,
            best_metric="eval/turn_1/expected_return",
            best_mode="min",
        ),
    )
    before = weights(evaluated)
    evaluated.train()
    asking.join()

    assert not same(before, weights(evaluated))
    assert same(weights(plain), weights(evaluated))
    assert set(reward.phases) == {"train", "eval"}

    rows = evaluations(evaluated)
    assert [(row["prompts"], row["eval/number"]) for row in rows] == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 4),
    ]
    assert [row["eval/tasks"] for row in rows] == [2, 1, 2, 2]
    # A tree of two turns, two samples wide, has four paths; nothing ends them early.
    assert [row["eval/paths"] for row in rows] == [8, 4, 8, 8]
    assert rows[0]["eval/turn_2/joint_actions"] == 8

    # What was told to who asked is what was recorded.
    task, whole = asking.results
    assert (task.task_id, whole.task_id) == ("row-0", "")
    assert whole.values["eval/turn_1/reward_mean"] == rows[1]["eval/turn_1/reward_mean"]

    folder = evaluated.run_directory
    assert folder is not None
    kept = pq.read_table(folder / "rollouts").to_pylist()
    of_evaluations = {(row["prompts_before"], row["phase"]) for row in kept}
    assert {(0, "eval"), (2, "eval"), (3, "eval")} <= of_evaluations
    first = [row["return"] for row in kept if row["id"].startswith("eval/1/") and row["turn"] == 1]
    assert sum(first) / len(first) == pytest.approx(rows[0]["eval/turn_1/expected_return"])

    best = json.loads((folder / "best" / "best.json").read_text())
    values = {row["eval/number"]: row["eval/turn_1/expected_return"] for row in rows}
    del values[2]  # one that was asked for is not compared
    number = min(values, key=lambda n: values[n])
    assert (best["value"], best["evaluation"]) == (values[number], number)
    model = AutoModelForCausalLM.from_pretrained(folder / "best" / "agent_0")
    known = {1: before, 4: weights(evaluated)}
    assert number not in known or same(known[number], model.state_dict())

    recorded = (folder / "metrics.jsonl").read_text()
    assert evaluated.evaluate(1)["eval/tasks"] == 1
    assert same(weights(plain), weights(evaluated))
    assert (folder / "metrics.jsonl").read_text() == recorded


def test_a_resumed_run_evaluates_what_an_uninterrupted_one_does(tmp_path: Path) -> None:
    """A run of one epoch that goes on to two, against one of two from the start."""
    options: dict[str, Any] = {
        "eval_dataset": [{"prompt": "dog sings"}, {"prompt": "blue"}],
        "train_dataset": TRAIN[:2],
    }

    def letters(texts: list[str]) -> list[float]:
        return [float(len(texts[0]))]

    settings = {**SMALL, "best_metric": "eval/turn_1/reward_mean"}
    whole = make(
        tmp_path / "whole",
        letters,
        args=MAGRPOConfig(**settings | {"num_train_epochs": 2}),
        **options,
    )
    whole.train()
    half = make(tmp_path / "half", letters, args=MAGRPOConfig(**settings), **options)
    half.train()
    rest = make(
        tmp_path / "half",
        letters,
        args=MAGRPOConfig(**settings | {"num_train_epochs": 2}),
        **options,
    )
    rest.train(resume_from_checkpoint=True)

    def told(trainer: MAGRPOTrainer) -> list[dict[str, Any]]:
        passing = ("time", "elapsed_seconds", "eval/seconds")
        return [{k: v for k, v in row.items() if k not in passing} for row in evaluations(trainer)]

    assert [row["prompts"] for row in told(whole)] == [0, 2, 4]
    assert told(rest) == told(whole)
    assert rest.run_directory is not None
    assert whole.run_directory is not None
    bests = [
        json.loads((run / "best" / "best.json").read_text())
        for run in (rest.run_directory, whole.run_directory)
    ]
    assert bests[0] == bests[1]


def test_the_trainer_evaluates_by_itself_and_leaves_the_agents_alone(tmp_path: Path) -> None:
    """Before training, on a service that belongs to a run for long: training may have it too."""
    seen: list[str] = []

    def no_blue(texts: list[str], prompts: list[str], phases: list[str]) -> list[float]:
        seen.extend(phases)
        if "blue" in prompts[0]:
            raise ValueError("no blue")
        return [float(len(texts[0]))]

    folder = tiny_folder(tmp_path / "tokenizer")
    serve = ("generation", "--model", str(folder), "--no-weights", "--run-lease", "600")
    with Processes(tmp_path) as processes:
        trainer = make(
            tmp_path,
            no_blue,
            eval_dataset=[{"prompt": "dog sings"}, {"prompt": "blue"}, {"prompt": "two"}],
            train_dataset=TRAIN[:1],
            generation_addresses=[processes.serve("agent_0", *serve).address()],
            args=MAGRPOConfig(
                **{**SMALL, "eval_interval": 0, "wire_dtype": "bfloat16"},
                eval_temperature=0,
                on_score_failure="missing",
            ),
        )
        before = weights(trainer)
        first, second = trainer.evaluate(), trainer.evaluate(2)
        assert set(seen) == {"eval"}
        assert first["eval/tasks"] == 2
        assert first["eval/turn_1/missing_rewards"] == 1
        assert first["eval/turn_2/joint_actions"] == 1
        rewards = first["eval/turn_1/reward_mean"], first["eval/turn_2/reward_mean"]
        assert first["eval/turn_1/expected_return"] == sum(rewards)
        assert {**second, "eval/seconds": 0.0} == {**first, "eval/seconds": 0.0}
        assert trainer.evaluate(0) == {}

        assert same(before, weights(trainer))
        assert trainer.agents[0].dtype is torch.float32
        assert not (tmp_path / "runs").exists()
        trainer.train()
        assert set(seen) == {"eval", "train"}
        assert evaluations(trainer) == []


def test_a_score_that_fails_ends_an_evaluation_unless_it_may_be_missing(tmp_path: Path) -> None:
    def fails(texts: list[str]) -> list[float]:
        raise ValueError("no reward")

    trainer = make(tmp_path, fails, eval_dataset=[{"prompt": "blue"}])
    with pytest.raises(Exception, match="no reward"):
        trainer.evaluate()


def test_evaluate_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    trainer = make(tmp_path, lambda a: [0.0])
    assert trainer.evaluate() == {}
    with pytest.raises(ValueError, match="num_eval_samples: got -1"):
        trainer.evaluate(-1)


def test_a_toml_run_names_what_it_evaluates_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(
        "def reward(a):\n    return [0.0]\n"
        "def logger(agent_completions_turns, batch_items, prompts):\n    return prompts\n"
        "def aggregator(metrics, num_turns):\n    return {}\n"
    )
    monkeypatch.chdir(tmp_path)
    tiny_folder(tmp_path / "model")
    (tmp_path / "run.toml").write_text(
        """
        [magrpo]
        num_turns = 1
        best_metric = "eval/turn_1/reward_mean"
        [[agents]]
        model = "model"
        [reward]
        function = "own:reward"
        [dataset]
        prompts = ["red"]
        [eval_dataset]
        prompts = ["blue", "green"]
        [evaluation]
        logger = "own:logger"
        aggregator = "own:aggregator"
        """
    )
    setup = setup_from_config(load_run_config(tmp_path / "run.toml", environ={}))
    assert setup.evaluation is not None
    assert [row.task.item for row in setup.evaluation.tasks.epoch()] == [
        {"prompt": "blue"},
        {"prompt": "green"},
    ]
    assert setup.evaluation.functions is not None
    assert (
        setup.evaluation.functions.name
        == "eval_logger own.logger and eval_aggregator own.aggregator"
    )
