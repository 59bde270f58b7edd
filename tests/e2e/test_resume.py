"""Promise 1: a run that is killed anywhere and resumed ends as one that was not."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.e2e.resumable_run import CONFIG, NO_PERIOD, PROMPTS
from tests.support import run_folders
from tests.support.models import tiny_folder
from tests.support.processes import Processes
from tests.support.row_orders import shuffled_rows

from antiphon.learner.record.rollout_reader import read_trees

PROMPTS_BY_BATCH = [2, 4, 5, 7, 9, 10]
"""Five prompts in batches of two, for two epochs."""
# Reward calls: a batch of two trees has 2 * (2 + 4) of joint actions. Updates: one per drain of
# four nodes, for each of two agents. Pushes: one per agent and publish. Calls of an evaluation: one
# per turn. A checkpoint has ten components.
PLACES = [
    "incarnation stored:1",
    "push:1",
    "reward:3",
    "reward:20",
    "transition:7",
    "update:3",
    "update:12",
    "push:8",
    "record:3",
    "evaluation:3",
    "checkpoint component:11",
    "checkpoint marked:3",
    "checkpoint renamed:4",
    "save:1",
]


def run(processes: Processes, folder: Path, *arguments: str) -> tuple[int, str]:
    """Runs the script to its end; exit code and output."""
    number = len(processes.started)
    script = [sys.executable, "-m", "tests.e2e.resumable_run", str(folder), *arguments]
    started = processes.start(f"run-{number}", script, cwd=Path.cwd())
    return started.wait(timeout=400), started.log


def kill(processes: Processes, folder: Path, place: str, *arguments: str) -> None:
    """Runs the script until it kills itself at `place`."""
    code, log = run(processes, folder, "--end", "KILL", place, *arguments)
    assert code == -signal.SIGKILL, f"not killed at {place}: code {code}\n{log}"


def finish(processes: Processes, folder: Path) -> str:
    """Resumes the script and lets it end; its output."""
    code, log = run(processes, folder, "--resume")
    assert code == 0, log
    return log


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody kills."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    with Processes(folder) as processes:
        code, log = run(processes, folder)
    assert code == 0, log
    return folder


def assert_same(
    folder: Path, wanted: Path, prompts_by_batch: Sequence[int] = PROMPTS_BY_BATCH
) -> None:
    """Weights bit for bit; every prompt once in the metrics and the rollouts, with its figures.

    The same of the evaluations, and the models of the best one.
    """
    for models in ("trained", "runs/run/best"):
        for agent in range(2):
            file = f"{models}/agent_{agent}/model.safetensors"
            weights, others = load_file(folder / file), load_file(wanted / file)
            assert weights.keys() == others.keys()
            for name in weights:
                assert weights[name].numpy().tobytes() == others[name].numpy().tobytes(), name
    rows = figures(folder)
    assert [row["prompts"] for row in rows if trains(row)] == list(prompts_by_batch)
    assert [row["eval/number"] for row in rows if not trains(row)] == [1, 2, 3]
    assert rows == figures(wanted)
    assert trees(folder) == trees(wanted)


def figures(folder: Path) -> list[dict[str, Any]]:
    """Rows of the metrics without those that tell time and traffic."""
    return [
        {name: value for name, value in row.items() if not tells_time(name)}
        for row in run_folders.metrics(folder / "runs" / "run")
    ]


def trains(row: dict[str, Any]) -> bool:
    """Whether a row of the metrics is of training, or of an evaluation."""
    return "eval/number" not in row


def tells_time(name: str) -> bool:
    return "seconds" in name or name == "time" or "push_" in name


def trees(folder: Path) -> list[Any]:
    """What was sampled, tree by tree, in the order of training."""
    return [
        (tree[0].epoch, tree[0].row, [action for node in tree for action in node.joint_actions])
        for tree in read_trees(folder / "runs" / "run" / "rollouts")
    ]


def resumed_chain(processes: Processes, folder: Path, places: Sequence[str]) -> None:
    """Resumes the run, kills it at each place in turn, and lets it end."""
    for place in places:
        kill(processes, folder, place, "--resume")
    finish(processes, folder)


@pytest.mark.timeout(1800)
def test_a_run_killed_three_times_ends_with_bitwise_the_weights_of_one_that_was_not(
    uninterrupted: Path,
    processes: Processes,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S12: killed while it samples, between the steps of an update, and in the middle of a push.

    What the killed processes had in the folder for temporary files is gone in the end, too.
    """
    temporary = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(temporary))
    kill(processes, tmp_path, "reward:17")
    assert [*temporary.iterdir()] != []
    resumed_chain(processes, tmp_path, ["update:4", "push:4"])
    assert_same(tmp_path, uninterrupted)
    assert (tmp_path / "runs" / "run-2").exists() is False
    assert [*temporary.iterdir()] == []


@pytest.mark.timeout(1800)
def test_a_run_that_samples_ahead_and_is_killed_trains_every_prompt_once_within_the_bound(
    processes: Processes, tmp_path: Path
) -> None:
    """S12: what was sampled ahead is in no checkpoint; it is dropped and sampled again."""
    ahead = ("--staleness", "1")
    kill(processes, tmp_path, "update:9", *ahead)
    code, log = run(processes, tmp_path, "--resume", *ahead)
    assert code == 0, log
    rows = [row for row in run_folders.metrics(tmp_path / "runs" / "run") if trains(row)]
    assert [row["prompts"] for row in rows] == PROMPTS_BY_BATCH
    order = [
        (epoch, row) for epoch in (1, 2) for row in shuffled_rows(len(PROMPTS), CONFIG.seed, epoch)
    ]
    assert [(epoch, row) for epoch, row, _ in trees(tmp_path)] == order
    found = [row[f"agent_{agent}/staleness_max"] for row in rows for agent in range(2)]
    assert set(found) == {0, 1}, "as stale as it may be, and no more"
    assert all(0 <= row["agent_0/truncated_fraction"] <= 1 for row in rows)


@pytest.mark.timeout(1800)
def test_a_run_whose_functions_draw_random_numbers_goes_on_in_the_same_draws(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S12: the prompt under way is dropped and drawn for again; the fourth of ten.

    The script seeds the generators whenever it starts, so what is drawn is the checkpoint's doing.
    """
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    code, log = run(processes, whole, "--draws")
    assert code == 0, log
    with monkeypatch.context() as without_period:
        without_period.setenv(NO_PERIOD, "1")
        code, log = run(processes, parted, "--draws", "--end", "TERM", "reward:8")
        assert code == 143, log
    code, log = run(processes, parted, "--draws", "--resume")
    assert code == 0, log
    assert_same(parted, whole, range(1, 11))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("place", PLACES)
def test_a_run_killed_anywhere_ends_with_bitwise_the_weights_of_one_that_was_not(
    uninterrupted: Path, processes: Processes, tmp_path: Path, place: str
) -> None:
    kill(processes, tmp_path, place)
    finish(processes, tmp_path)
    assert_same(tmp_path, uninterrupted)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_that_has_finished_ends_at_once_and_says_so(
    uninterrupted: Path, processes: Processes, tmp_path: Path
) -> None:
    """S12: resumed past the last step; the agents get the weights that were trained."""
    kill(processes, tmp_path, "save:2")
    before = run_folders.metrics(tmp_path / "runs" / "run")
    log = finish(processes, tmp_path)
    assert "nothing is left to train" in log
    assert run_folders.metrics(tmp_path / "runs" / "run") == before
    assert_same(tmp_path, uninterrupted)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("how", "place", "code", "checkpoint"),
    [
        ("TERM", "reward:20", 143, "checkpoint-00000002"),
        ("TERM", "update:2", 143, "checkpoint-00000002"),
        ("ERROR", "reward:20", 1, "checkpoint-00000002"),
    ],
    ids=["SIGTERM while sampling", "SIGTERM in an update", "an error of the reward function"],
)
def test_a_run_that_ends_before_its_time_is_saved_first_and_goes_on_from_there(
    uninterrupted: Path,
    processes: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    place: str,
    code: int,
    checkpoint: str,
) -> None:
    """S13: no checkpoint is due by the settings; what was trained is not lost."""
    monkeypatch.setenv(NO_PERIOD, "1")
    ended, log = run(processes, tmp_path, "--end", how, place)
    assert ended == code, log
    checkpoints = tmp_path / "runs" / "run" / "checkpoints"
    assert [path.name for path in checkpoints.iterdir()] == [checkpoint]
    finish(processes, tmp_path)
    assert_same(tmp_path, uninterrupted)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_services_that_outlive_a_killed_learner_serve_the_resumed_one_its_own_weights(
    uninterrupted: Path, processes: Processes, tmp_path: Path
) -> None:
    """S7: they hold a later version of the dead learner's; nothing is sampled from it."""
    model = tiny_folder(tmp_path / "model")
    options = ("--no-weights", "--model", str(model), "--threads", "1")
    services = [processes.serve(f"agent-{n}", "generation", *options) for n in range(2)]
    addresses = ["--addresses", *(service.address(timeout=200) for service in services)]
    # The third publish of both agents is applied, its checkpoint is not written any more.
    kill(processes, tmp_path, "checkpoint component:11", *addresses)
    code, log = run(processes, tmp_path, "--resume", *addresses)
    assert code == 0, log
    assert "runs/run/checkpoints/checkpoint-00000002\n" in log
    assert_same(tmp_path, uninterrupted)
    stored = json.loads((tmp_path / "runs" / "run" / "run.json").read_text())
    assert stored["incarnation"] == 2
