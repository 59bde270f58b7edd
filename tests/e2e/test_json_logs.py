"""`log_format = "json"`: all that a run says on standard error is for machines."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.support.models import tiny_folder
from tests.support.processes import QUIET, command

TASK = """
import sys, warnings

calls = []

def reward(answers):
    calls.append(answers)
    warnings.warn(f"reward {len(calls)}")
    print("a function prints", file=sys.stderr)
    if len(calls) > 2:
        raise ValueError("the third reward")
    return [float(len(answer)) for answer in answers]
"""

RUN = """
[run]
name = "run"
log_format = "json"

[magrpo]
num_agents = 1
num_turns = 1
num_train_epochs = 1
num_generations = 2
max_new_tokens = 4
temperature = 1.0
reward_batch_size = 2

[[agents]]
model = "{model}"

[reward]
function = "my_task:reward"

[dataset]
prompts = ["a red cat", "two dog sings", "green c"]
"""


def antiphon(folder: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of a command, and the objects that it has on standard error."""
    done = subprocess.run(
        command(*arguments),
        cwd=folder,
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=200,
    )
    entries = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(entry.keys() >= {"time", "level", "logger", "message"} for entry in entries)
    return done.returncode, entries


def test_every_line_is_one_json_object_from_the_first_to_the_root_error(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path / "model")
    (tmp_path / "my_task.py").write_text(TASK)
    (tmp_path / "run.toml").write_text(RUN.format(model=model))
    code, entries = antiphon(tmp_path, "train", "run.toml")
    assert code == 1, entries

    progress = [entry for entry in entries if entry["logger"] == "antiphon.progress"]
    assert [entry["prompts_done"] for entry in progress if "prompts_done" in entry] == [1, 2]
    assert any(entry["message"].startswith("run folder: ") for entry in progress)
    by_logger = {entry["logger"]: entry for entry in entries if "reward 1" in entry["message"]}
    assert by_logger["py.warnings"]["level"] == "warning"
    assert any(entry["message"] == "a function prints" for entry in entries)
    last = entries[-1]
    assert (last["level"], last["logger"]) == ("error", "antiphon")
    assert last["message"].startswith("Score at unix:")
    assert 'raise ValueError("the third reward")' in last["message"]


def test_settings_that_are_refused_are_told_in_the_format_that_they_ask_for(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN.format(model="m").replace("num_turns", "num_turn"))
    code, (refusal,) = antiphon(tmp_path, "train", "run.toml")
    assert code == 1
    assert (refusal["level"], refusal["logger"]) == ("error", "antiphon")
    assert refusal["message"].startswith("magrpo.num_turn: got an unknown key")


def test_options_that_are_refused_are_told_in_the_format_that_they_ask_for(tmp_path: Path) -> None:
    options = ("--port", "soon", "--log-format", "json")
    code, entries = antiphon(tmp_path, "serve", "reward", "my_task:reward", *options)
    assert code == 2
    assert (entries[-1]["level"], entries[-1]["logger"]) == ("error", "antiphon")
    assert "'--port'" in entries[-1]["message"]
