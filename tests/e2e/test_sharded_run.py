"""A whole run of several ranks: as one process trains it, and what becomes of it when one dies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.support.models import tiny_folder
from tests.support.processes import command, run
from tests.support.ranks import torchrun
from transformers import AutoModelForCausalLM

TASK = '''
import os

import psutil

calls = 0


def others():
    """The other ranks: what torchrun started beside this process."""
    started = psutil.Process(os.getppid()).children()
    return [process for process in started if process.pid != os.getpid()]


def reward(first, second):
    global calls
    calls += 1
    if calls == int(os.environ.get("TESTS_KILL_AT_CALL", 0)):
        others()[-1].kill()
    words = [(len(a.split()), b.split().count("a"), len(b)) for a, b in zip(first, second)]
    return [0.3 * a + 0.5 * b + 0.01 * c for a, b, c in words]


def feedback(prompt, agent_completions, num_agents):
    return [f"again {prompt} {text[:5]}" for text in agent_completions]
'''

RUN = """
[run]
name = "run"

[magrpo]
num_turns = 2
num_train_epochs = 2
num_generations = 3
max_new_tokens = 5
temperature = 1.0
top_p = "none"
top_k = 20
agent_learning_rate = 2e-3
early_termination_threshold = "none"
wire_dtype = "float32"
logging_steps = 1
reference_kl_enabled = true
checkpoint_every_prompts = 1
seed = 5

[[agents]]
model = "{first}"
[[agents]]
model = "{second}"

[reward]
function = "my_task:reward"
[transition]
function = "my_task:feedback"

[dataset]
prompts = ["a red cat", "two dog sings", "green c b"]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a run of two tiny agents."""
    first = tiny_folder(tmp_path / "first", seed=1)
    second = tiny_folder(tmp_path / "second", seed=2, tie=False)
    (tmp_path / "my_task.py").write_text(TASK)
    (tmp_path / "run.toml").write_text(RUN.format(first=first, second=second))
    return tmp_path


def train(place: Path, ranks: int, *options: str, **environ: str) -> tuple[int, str]:
    return torchrun(
        ranks, "antiphon.learner", ["run.toml", *options], cwd=place, environ=environ, timeout=280
    )


def assert_trained_alike(run: Path, wanted: Path, within: float = 1e-6) -> None:
    for agent in ("agent_0", "agent_1"):
        got = AutoModelForCausalLM.from_pretrained(run / agent).state_dict()
        for name, tensor in (
            AutoModelForCausalLM.from_pretrained(wanted / agent).state_dict().items()
        ):
            torch.testing.assert_close(got[name], tensor, rtol=0, atol=within)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ranks_train_a_run_as_one_process_does_also_after_one_was_killed(place: Path) -> None:
    """S12, S13: the job ends with the root error, and goes on from its last checkpoint."""
    run(command("train", "run.toml", "--set", "run.name=alone"), cwd=place, timeout=200)
    alone = place / "runs" / "alone"

    code, output = train(place, 2, "--set", "sharding.placement=per-agent")
    assert code == 0, output
    assert_trained_alike(place / "runs" / "run", alone)

    code, output = train(place, 2, "--set", "run.name=killed", TESTS_KILL_AT_CALL="20")
    assert code != 0
    assert "one of the 2 ranks of the learner ended without a word" in output, output
    killed = place / "runs" / "killed"
    assert json.loads((killed / "summary.json").read_text())["state"] == "failed"
    assert sorted((killed / "checkpoints").glob("checkpoint-*"))

    code, output = train(place, 4, "--resume", "runs/killed")
    assert code == 0, output
    assert "goes on from" in output
    # AdamW makes steps of a size of their own from gradients that differ by rounding.
    assert_trained_alike(killed, alone, within=1e-5)


@pytest.mark.slow
def test_a_setting_that_is_refused_ends_every_rank_with_that_error(place: Path) -> None:
    code, output = train(place, 2, "--set", "magrpo.reference_devices=cpu")
    assert code != 0
    assert output.count("antiphon: magrpo.reference_devices: got 'cpu'") == 1, output


@pytest.mark.slow
def test_a_script_is_not_started_in_several_processes(place: Path) -> None:
    (place / "script.py").write_text(
        "from my_task import reward\n"
        "from antiphon.learner import MAGRPOConfig, MAGRPOTrainer\n"
        f"trainer = MAGRPOTrainer({str(place / 'first')!r}, num_agents=2, reward_func=reward,\n"
        "    train_dataset=[{'prompt': 'a red cat'}], args=MAGRPOConfig(num_turns=1))\n"
        "trainer.train()\n"
    )
    code, output = torchrun(2, "script", [], cwd=place)
    assert code != 0
    assert "WORLD_SIZE: got a script that torchrun started in several processes" in output
