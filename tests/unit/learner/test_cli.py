"""`antiphon train` as a user meets it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock, create_autospec

import pytest
from tests.support.models import tiny_folder
from typer.testing import CliRunner

from antiphon.clients.cli import app
from antiphon.learner.run import toml_run
from antiphon.learner.run.children import ChildError
from antiphon.learner.run.watchdog import NoProgressError
from antiphon.services.common.errors import UserFunctionError

TASKS = """
def reward(first, second):
    return [float(len(b)) for a, b in zip(first, second)]

def feedback(prompt, agent_completions, num_agents):
    return [prompt] * num_agents
"""

RUN = """
[magrpo]
num_turns = 2
max_new_tokens = 8

[[agents]]
model = "tiny"
[[agents]]
model = "tiny"

[reward]
function = "tasks:reward"

[transition]
function = "tasks:feedback"

[dataset]
prompts = ["red green", "blue"]
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path / "run.toml"


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Stands for the training itself, and takes the arguments that it takes."""
    stand_in: Mock = create_autospec(toml_run.train_from_config)
    monkeypatch.setattr(toml_run, "train_from_config", stand_in)
    return stand_in


def _antiphon(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from antiphon.clients.cli import main; main()", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "120", "OMP_NUM_THREADS": "1"},
    )


def test_help_teaches_by_example() -> None:
    result = CliRunner().invoke(app, ["train", "--help"])
    assert result.exit_code == 0
    for part in ("[[agents]]", "antiphon train run.toml --dry-run", "--set", "Exit codes"):
        assert part in result.output
    assert "\\b" not in result.output


def test_a_dry_run_shows_the_run_and_trains_nothing(run_file: Path) -> None:
    folder = run_file.parent
    (folder / "tasks.py").write_text(TASKS)
    tiny_folder(folder / "tiny")
    result = _antiphon("train", "run.toml", "--dry-run", "--resume", "latest", folder=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "This run can start." in result.stdout
    assert "--resume was not looked at" in result.stderr
    assert "whole run, at most" in result.stdout
    assert not (folder / "runs").exists()


def test_an_unknown_key_is_one_line_and_code_1(run_file: Path) -> None:
    result = _antiphon("train", "run.toml", "--set", "magrpo.num_turn=3", folder=run_file.parent)
    assert result.returncode == 1
    (line,) = result.stderr.strip().splitlines()
    assert "magrpo.num_turn" in line
    assert "'num_turns'" in line


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = _antiphon("train", "nowhere.toml", folder=tmp_path)
    assert result.returncode == 1
    assert "nowhere.toml" in result.stderr.strip().splitlines()[-1]


def test_the_run_gets_the_resolved_settings(run_file: Path, training: Mock) -> None:
    result = CliRunner().invoke(
        app,
        ["train", str(run_file), "--set", "magrpo.num_generations=3"],
        env={"ANTIPHON_MAGRPO__SEED": "7"},
    )
    assert result.exit_code == 0, result.output
    training.assert_called_once()
    (config,), options = training.call_args
    assert options["resume"] is None
    assert config.magrpo.num_generations == 3
    assert config.magrpo.seed == 7
    assert config.num_agents == 2


@pytest.mark.parametrize(
    "error",
    [
        NoProgressError("the run made no progress for 9 s (progress_timeout)"),
        ChildError("the generation service of agent 1 ended with code -9"),
    ],
)
def test_what_ends_a_run_is_the_last_line_of_the_screen(
    run_file: Path, training: Mock, error: Exception
) -> None:
    training.side_effect = error
    result = CliRunner().invoke(app, ["train", str(run_file)])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == f"antiphon: {error}"


def test_what_is_to_be_resumed_is_passed_on(run_file: Path, training: Mock) -> None:
    result = CliRunner().invoke(app, ["train", str(run_file), "--resume", "runs/one"])
    assert result.exit_code == 0, result.output
    training.assert_called_once()
    assert training.call_args.kwargs["resume"] == "runs/one"


def test_what_the_user_typed_is_kept_to_tell_how_to_go_on(run_file: Path, training: Mock) -> None:
    """But what was resumed: the next time that is this run."""
    settings = ["--set", "magrpo.seed=7", "--set", "run.name=two words"]
    arguments = ["train", str(run_file), *settings, "--resume", "runs/one"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    (config,), options = training.call_args
    assert (config.magrpo.seed, config.run.name) == (7, "two words")
    wanted = f"antiphon train {run_file} --set magrpo.seed=7 --set 'run.name=two words'"
    assert options["command"] == wanted


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        (SystemExit(143), 143),
        (UserFunctionError("reward", "raised ValueError: bad"), 1),
        (RuntimeError("push to agent 0 failed"), 1),
    ],
    ids=["Ctrl-C", "SIGTERM", "user function", "other"],
)
def test_how_a_run_ends_is_the_exit_code(
    run_file: Path, training: Mock, error: BaseException, code: int
) -> None:
    training.side_effect = error
    assert CliRunner().invoke(app, ["train", str(run_file)]).exit_code == code
    training.assert_called_once()


def test_the_root_error_is_last_on_the_screen(run_file: Path, training: Mock) -> None:
    training.side_effect = UserFunctionError(
        "reward", "raised ValueError: bad", trace="Traceback: line 3"
    )
    result = CliRunner().invoke(app, ["train", str(run_file)])
    lines = result.output.strip().splitlines()
    assert lines[-2:] == ["Traceback: line 3", "antiphon: reward: raised ValueError: bad"]
