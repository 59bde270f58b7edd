"""`antiphon train --resume` and `antiphon checkpoint`, as people type them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import torch
from tests.e2e.test_by_hand import TASK
from tests.support import run_folders
from tests.support.models import tiny_folder
from tests.support.processes import Processes, Started, wait_until
from transformers import AutoModelForCausalLM

from antiphon.clients.learner import LearnerClient

RUN = """
[run]
name = "run"

[magrpo]
num_turns = 2
num_train_epochs = {epochs}
num_generations = 2
max_new_tokens = 4
temperature = 1.0
agent_learning_rate = 1e-2
early_termination_threshold = "none"
logging_steps = 1

[[agents]]
model = "{model}"
[[agents]]
model = "{model}"

[reward]
function = "my_task:reward"
[transition]
function = "my_task:feedback"

[dataset]
prompts = ["a red cat", "two dog sings"]
"""


def learner_address(started: Started, folder: Path) -> str:
    """Where the learner of a run serves, once it does."""
    file = folder / "learner.json"

    def serves() -> bool:
        assert started.popen.poll() is None, started.log
        return file.exists() and json.loads(file.read_text())["pid"] == started.popen.pid

    wait_until(serves, timeout=200, what="the learner serves")
    return str(json.loads(file.read_text())["address"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_that_was_paused_saved_and_stopped_goes_on_and_then_has_nothing_left(
    tmp_path: Path, processes: Processes
) -> None:
    """S12: a finished run that is resumed ends at once with code 0; more epochs go on."""
    model = tiny_folder(tmp_path / "model")
    (tmp_path / "my_task.py").write_text(TASK)
    file = tmp_path / "run.toml"
    file.write_text(RUN.format(model=model, epochs=2))
    folder = tmp_path / "runs" / "run"

    # Paused before its first prompt, so that where it is saved and stopped is no matter of luck.
    first = processes.antiphon("first", "train", str(file))
    address = learner_address(first, folder)
    asyncio.run(pause(address))
    saved = processes.antiphon("saving", "checkpoint", address).succeed(timeout=200).strip()
    assert saved == str(folder / "checkpoints" / "checkpoint-00000000")
    asyncio.run(stop(address))
    said = first.succeed(timeout=100)
    assert "the run is stopped (enough) after 0 of 4 prompts, in epoch " in said
    assert f"; to go on: antiphon train {file} --resume {folder}" in said
    assert json.loads((folder / "summary.json").read_text())["state"] == "stopped"

    goes_on = processes.antiphon("goes-on", "train", str(file), "--resume", saved)
    assert f"goes on from {saved}" in goes_on.succeed(timeout=200)
    assert [row["prompts"] for row in run_folders.metrics(folder)] == [1, 2, 3, 4]
    assert json.loads((folder / "run.json").read_text())["incarnation"] == 2
    trained = weights(folder)

    again = processes.antiphon("again", "train", str(file), "--resume", str(folder))
    assert "nothing is left to train" in again.succeed(timeout=200)
    assert all(torch.equal(a, b) for a, b in zip(trained, weights(folder), strict=True))

    file.write_text(RUN.format(model=model, epochs=3))
    more = processes.antiphon("more", "train", str(file), "--resume", "latest")
    assert "num_train_epochs was 2 and is 3" in more.succeed(timeout=200)
    assert [row["prompts"] for row in run_folders.metrics(folder)] == [1, 2, 3, 4, 5, 6]

    file.write_text(RUN.format(model=model, epochs=3).replace("num_turns = 2", "num_turns = 3"))
    refused = processes.antiphon("refused", "train", str(file), "--resume", str(folder))
    assert refused.wait(timeout=200) == 1
    assert "num_turns was 2 and is 3" in refused.log.strip().splitlines()[-1]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run"]


async def pause(address: str) -> None:
    async with LearnerClient(address) as client:
        await client.pause(20)


async def stop(address: str) -> None:
    async with LearnerClient(address) as client:
        await client.stop("enough", 20)


def weights(folder: Path) -> list[torch.Tensor]:
    return [
        parameter.detach()
        for agent in range(2)
        for parameter in AutoModelForCausalLM.from_pretrained(
            folder / f"agent_{agent}"
        ).parameters()
    ]
