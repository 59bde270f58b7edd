"""`log_format = "json"`: all that a run says on standard error is for machines."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

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


def test_every_line_is_one_json_object_from_the_first_to_the_root_error(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path / "model")
    (tmp_path / "my_task.py").write_text(TASK)
    (tmp_path / "run.toml").write_text(RUN.format(model=model))
    done = subprocess.run(
        command("train", "run.toml"),
        cwd=tmp_path,
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1, done.stderr
    entries = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(entry.keys() >= {"time", "level", "logger", "message"} for entry in entries)

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
