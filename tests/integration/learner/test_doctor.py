"""`antiphon doctor` against real services: what is well, what is not, and what to do."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest
from rich.console import Console
from tests.support.models import save_model, tiny_folder, tiny_model, tiny_tokenizer
from tests.support.processes import Processes, command

from antiphon.clients.reach import Remark, Verdict
from antiphon.learner.config.run_file import load_run_config
from antiphon.learner.run.doctor import Patient, examine
from antiphon.learner.run.doctor_view import show_patients

RUN = """
[magrpo]
num_turns = 1
max_new_tokens = 8
control_timeout = 20

[[agents]]
model = "{model}"
addresses = ["{generation}"]

[[agents]]
model = "{model}"

[reward]
address = "{reward}"

[dataset]
prompts = ["red"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("doctor")
    tiny_folder(made / "model")
    (made / "judge.py").write_text("def score(a, b):\n    return [0.0]\n")
    return made


def doctor(file: Path) -> tuple[int, str]:
    done = subprocess.run(
        ["env", "COLUMNS=200", *command("doctor", str(file))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


async def faults(file: Path, *overrides: str) -> list[Remark]:
    patients: list[Patient] = await examine(load_run_config(file, overrides=overrides))
    found = [remark for patient in patients for remark in patient.remarks]
    return [remark for remark in found if remark.verdict is Verdict.FAULT]


async def test_every_address_is_examined_and_each_fault_told(folder: Path) -> None:
    with Processes(folder) as processes:
        model = folder / "model"
        generation = processes.serve("g", "generation", "--model", str(model), "--agent", "0")
        reward = processes.serve("r", "reward", "judge:score")
        run = folder / "run.toml"
        addresses = {"generation": generation.address(), "reward": reward.address()}
        run.write_text(RUN.format(model=model, **addresses))

        code, told = doctor(run)
        assert code == 0, told
        assert "Every address can be used." in told
        assert f"agents[0] at {addresses['generation']}" in told
        assert "engine transformers: fits the agent" in told
        assert "free, weights version 0" in told
        assert "serving judge.score" in told

        (long,) = await faults(run, "magrpo.max_new_tokens=100000")
        assert long.what == "context"
        assert "lower magrpo.max_new_tokens" in long.advice

        other = folder / "other"
        tokenizer = tiny_tokenizer(other, words=("entirely", "other", "words"))
        save_model(other, tiny_model(tokenizer, 0), tokenizer)
        (unfit,) = await faults(run, f"agents.0.model={other}")
        assert unfit.what == "model"
        assert "serve the model that the run names" in unfit.advice

        (nowhere,) = await faults(run, f"agents.0.model={folder / 'nowhere'}")
        assert nowhere.what == "model"
        assert "nowhere" in nowhere.detail

        generation.terminate()
        (gone,) = await faults(run)
        assert gone.what == "connection"


async def test_a_run_that_starts_its_services_itself_has_nothing_to_reach(folder: Path) -> None:
    run = folder / "local.toml"
    agent = f'[[agents]]\nmodel = "{folder / "model"}"\n'
    run.write_text(
        f'[magrpo]\nnum_turns = 1\n{agent}{agent}[reward]\nfunction = "judge:score"\n'
        '[dataset]\nprompts = ["red"]\n'
    )
    shown = io.StringIO()
    show_patients(Console(file=shown), await examine(load_run_config(run)))
    assert shown.getvalue() == "The run names no address: it starts its services itself.\n"
