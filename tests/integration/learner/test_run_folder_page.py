"""docs/records.md names every file of a run folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support import run_folders
from tests.support.models import tiny_folder
from typer.testing import CliRunner

from antiphon.clients.cli import app
from antiphon.learner.config.run_file import load_run_config
from antiphon.learner.run.toml_run import train_from_config

PAGE = Path(__file__).parents[3] / "docs" / "records.md"

RUN = """
[run]
directory = "runs"

[magrpo]
num_turns = 1
num_train_epochs = 1
num_generations = 2
max_new_tokens = 4
temperature = 1.0
trackers = ["tensorboard"]
best_metric = "eval/turn_1/reward_mean"

[[agents]]
model = "model"
[[agents]]
model = "model"

[reward]
function = "page_tasks:reward"

[dataset]
prompts = ["a red cat"]
[eval_dataset]
prompts = ["two dog sings"]
"""


def named() -> set[str]:
    """What the first table of the page names, right below the run folder; of agents the first."""
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page[: page.index("## ")], re.MULTILINE)
    names = re.findall(r"`([^`]+)`", " ".join(rows))
    return {name.split("/")[0] for name in names}


def test_the_table_of_a_run_folder_names_what_a_run_leaves_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that leaves all that there is: trackers, best models, a report."""
    tiny_folder(tmp_path / "model")
    (tmp_path / "page_tasks.py").write_text(
        "def reward(a, b):\n    return [float(len(a[0] + b[0]))]\n"
    )
    (tmp_path / "run.toml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    train_from_config(load_run_config(tmp_path / "run.toml"))
    folder = run_folders.find(tmp_path / "runs")
    assert CliRunner().invoke(app, ["report", str(folder)]).exit_code == 0
    left = {path.name for path in folder.iterdir()}
    assert "agent_1" in left
    assert left - {"agent_1"} == named()
