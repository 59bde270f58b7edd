"""Trains two tiny models by `antiphon train` against a reward service that already runs."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from tests.support import run_folders
from tests.support.processes import Processes, Started, wait_until

ROOT = Path(__file__).parents[3]

RUN = """
[run]
directory = "{directory}"

[magrpo]
num_turns = 2
num_train_epochs = 1
num_generations = 3
max_new_tokens = 6
temperature = 1.0
top_k = "none"
top_p = "none"
early_termination_threshold = "none"
logging_steps = 1

[[agents]]
model = "{model}"

[[agents]]
model = "{model}"

[reward]
address = "{address}"

[transition]
function = "examples.length_ratio:length_feedback"

[dataset]
prompts = ["a red cat sings", "two dog replies b"]
"""


def printed_address(service: Started, *, timeout: float = 60) -> str:
    """The address that a service says it listens on."""
    pattern = re.compile(r"127\.0\.0\.1:[1-9]\d*")

    def listens() -> bool:
        assert service.popen.poll() is None, f"{service.name} ended:\n{service.log}"
        return pattern.search(service.log) is not None

    wait_until(listens, timeout=timeout, what=f"{service.name} says where it listens")
    match = pattern.search(service.log)
    assert match is not None
    return match.group()


def train(processes: Processes, model: Path, address: str) -> Path:
    """Trains to the end and returns the run folder."""
    directory = processes.directory
    file = directory / "run.toml"
    file.write_text(RUN.format(directory=directory / "runs", model=model, address=address))
    processes.antiphon("train", "train", str(file), cwd=ROOT).succeed(timeout=180)
    return run_folders.find(directory)


def expected_reward(first: str, second: str) -> float:
    """The task's reward, from its definition."""
    ratio = len(second) / max(len(first), 1)
    if 2 <= ratio <= 3:
        return 1.0
    return math.exp(-min(abs(ratio - 2), abs(ratio - 3)))


def assert_rewarded_by_the_task(folder: Path) -> None:
    """Every reward in the record is that of the texts beside it; whole trees were grown."""
    nodes = run_folders.rollouts(folder)
    assert [node["turn"] for node in nodes] == 2 * [1, 2, 2, 2]
    for node in nodes:
        first, second = ([c["text"] for c in agent["completions"]] for agent in node["agents"])
        expected = [
            expected_reward(first[i], second[j])
            for i, j in (action["samples"] for action in node["joint_actions"])
        ]
        # Languages round exp in the last place as they like.
        rewards = [action["reward"] for action in node["joint_actions"]]
        assert rewards == pytest.approx(expected, rel=1e-14)
