"""Trackers are told what metrics.jsonl holds, over joint actions, without a network."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.support import wandb_runs
from tests.support.trees import make_node

from antiphon.clients.types import FieldError, RunState
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.record.record import RunRecord
from antiphon.learner.record.run_folder import RunFolder
from antiphon.learner.record.trackers import opening
from antiphon.learner.record.trackers.base import MetricsRow, TrackedRun
from antiphon.learner.record.trackers.opening import Guarded, check_installed, open_trackers
from antiphon.learner.record.trackers.settings import WandbConfig, read_wandb_config, trackers_of

SECONDS = {"generate": 2.0}
CONFIG = {"num_turns": 1, "agents": [{"model": "m"}]}


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "demo")


def _run(folder: RunFolder, **changes: Any) -> TrackedRun:
    return TrackedRun(folder.run_id, folder.path.name, folder.path, CONFIG, **changes)


def _train(folder: RunFolder, trackers: list[Any]) -> None:
    """Two rows: rewards 1 and 2 after 2 joint actions, 3 and 5 after 4."""
    config = MAGRPOConfig(num_turns=1, logging_steps=1)
    record = RunRecord(folder, config, num_agents=2, models=["m", "m"])
    record.track(trackers)
    for rewards in ([1.0, 2.0], [3.0, 5.0]):
        record.rolled_out(1, [make_node(rewards)])
        record.batch_done(SECONDS)
    record.finish(RunState.FINISHED)
    for tracker in trackers:
        tracker.finish(RunState.FINISHED, "")


def test_weights_and_biases_gets_every_row_over_joint_actions(folder: RunFolder) -> None:
    settings = WandbConfig(
        project="choirs",
        entity="us",
        name="first",
        tags=("a", "b"),
        config_sections={"dataset": {"name": "poems"}},
    )
    _train(folder, open_trackers(["wandb"], _run(folder), settings, pytest.fail))
    rows = wandb_runs.history(folder.path)
    assert [row["step"] for row in rows] == [2, 4]
    assert [row["turn_1/reward_mean"] for row in rows] == [1.5, 4.0]
    assert [row["prompts"] for row in rows] == [1, 2]
    (run,) = wandb_runs.of_kind(folder.path, "run")
    assert (run.project, run.entity, run.display_name) == ("choirs", "us", "first")
    assert list(run.tags) == ["a", "b"]
    assert run.run_id == folder.run_id
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["num_turns"] == 1
    assert config["agents"] == [{"model": "m"}]
    assert config["dataset_name"] == "poems"
    (ended,) = wandb_runs.of_kind(folder.path, "exit")
    assert ended.exit_code == 0


def test_a_failed_run_is_marked_so_in_weights_and_biases(folder: RunFolder, tmp_path: Path) -> None:
    settings = WandbConfig(dir=tmp_path / "elsewhere", offline=True)
    (tracker,) = open_trackers(["wandb"], _run(folder), settings, pytest.fail)
    tracker.finish(RunState.FAILED, "reward service is gone")
    (ended,) = wandb_runs.of_kind(tmp_path / "elsewhere", "exit")
    assert ended.exit_code == 1
    assert wandb.run is None


def test_tensorboard_gets_every_row_over_joint_actions(folder: RunFolder) -> None:
    _train(folder, open_trackers(["tensorboard"], _run(folder), WandbConfig(), pytest.fail))
    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    rewards = events.Scalars("turn_1/reward_mean")
    assert [(event.step, event.value) for event in rewards] == [(2, 1.5), (4, 4.0)]


def test_a_resumed_run_hides_what_came_after_its_checkpoint_in_tensorboard(
    folder: RunFolder,
) -> None:
    _train(folder, open_trackers(["tensorboard"], _run(folder), WandbConfig(), pytest.fail))
    resumed = _run(folder, resumed=True, joint_actions=2)
    (tracker,) = open_trackers(["tensorboard"], resumed, WandbConfig(), pytest.fail)
    tracker.log(MetricsRow(4, 1, 2, 100.0, 1.0, {"turn_1/reward_mean": 7.0}))
    tracker.finish(RunState.FINISHED, "")
    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    rewards = events.Scalars("turn_1/reward_mean")
    assert [(event.step, event.value) for event in rewards] == [(2, 1.5), (4, 7.0)]


def test_trackio_gets_every_row_over_joint_actions(folder: RunFolder, tmp_path: Path) -> None:
    settings = WandbConfig(project="choirs", name="first")
    _train(folder, open_trackers(["trackio"], _run(folder), settings, pytest.fail))
    with sqlite3.connect(tmp_path / "trackio" / "choirs.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics order by step")
        told = [(name, step, json.loads(metrics)) for name, step, metrics in rows]
    assert [(name, step) for name, step, _ in told] == [("first", 2), ("first", 4)]
    assert [figures["turn_1/reward_mean"] for _, _, figures in told] == [1.5, 4.0]


def _told_to_trackio(file: Path) -> list[tuple[int, str, float]]:
    """Step, name and value of each figure, in the order in which they came."""
    with sqlite3.connect(file) as database:
        rows = database.execute("select step, metrics from metrics order by id").fetchall()
    told = [(step, json.loads(metrics)) for step, metrics in rows]
    return [
        (step, name, value)
        for step, figures in told
        for name, value in figures.items()
        if name not in ("epoch", "prompts")
    ]


@pytest.mark.parametrize("at", [0, 2])
def test_a_resumed_run_tells_trackio_no_row_twice(
    folder: RunFolder, tmp_path: Path, at: int
) -> None:
    """Rows after the checkpoint at 2, or all where there is none yet, are there already."""

    def tell(run: TrackedRun, *rows: tuple[int, str, float]) -> None:
        (tracker,) = open_trackers(["trackio"], run, WandbConfig(project="choirs"), pytest.fail)
        for step, name, value in rows:
            tracker.log(MetricsRow(step, 1, 2, 100.0, 1.0, {name: value}))
        tracker.finish(RunState.STOPPED, "")

    before = [(0, "eval", 0.5), (2, "reward", 1.0), (4, "reward", 2.0)]
    tell(_run(folder), *before)
    # An evaluation at the checkpoint itself is one that the stop had dropped.
    left = [(2, "eval", 0.75)] if at == 2 else []
    again = [row for row in before if row[0] > at or at == 0]
    resumed = _run(folder, resumed=True, joint_actions=at)
    tell(resumed, *left, *again, (6, "reward", 3.0))
    expected = [*before, *left, (6, "reward", 3.0)]
    assert _told_to_trackio(tmp_path / "trackio" / "choirs.db") == expected


def test_every_tracker_is_told_what_the_run_folder_holds(folder: RunFolder) -> None:
    told: list[MetricsRow] = []

    class Listener:
        def log(self, row: MetricsRow) -> None:
            told.append(row)

        def finish(self, state: RunState, error: str) -> None:
            pass

    _train(folder, [Listener()])
    lines = [json.loads(line) for line in folder.metrics_file.read_text().splitlines()]
    assert [row.joint_actions for row in told] == [2, 4]
    for line, row in zip(lines, told, strict=True):
        assert line == {
            "joint_actions": row.joint_actions,
            "epoch": row.epoch,
            "prompts": row.prompts,
            "time": row.time,
            "elapsed_seconds": row.elapsed_seconds,
            **row.figures,
        }


def test_a_tracker_that_fails_ends_itself_and_not_the_run(folder: RunFolder) -> None:
    calls: list[str] = []
    notes: list[str] = []

    class Broken:
        def log(self, row: MetricsRow) -> None:
            calls.append("log")
            raise ConnectionError("no route")

        def finish(self, state: RunState, error: str) -> None:
            calls.append("finish")

    _train(folder, [Guarded("wandb", Broken(), notes.append)])
    assert calls == ["log"]
    assert notes == [
        "wandb failed and is told nothing more: ConnectionError: no route; "
        "metrics.jsonl in the run folder goes on"
    ]
    assert len(folder.metrics_file.read_text().splitlines()) == 2


def test_a_tracker_that_never_finishes_is_left_behind() -> None:
    released, notes = threading.Event(), []

    class Stuck:
        def log(self, row: MetricsRow) -> None:
            pass

        def finish(self, state: RunState, error: str) -> None:
            released.wait(60)

    Guarded("wandb", Stuck(), notes.append, finish_seconds=0.05).finish(RunState.FINISHED, "")
    released.set()
    assert notes == [
        "wandb has not sent everything within 0.05 s; metrics.jsonl in the run folder holds it all"
    ]


def test_a_missing_extra_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed(["wandb", "tensorboard", "trackio"])
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    with pytest.raises(FieldError) as caught:
        check_installed(["trackio"])
    assert str(caught.value) == (
        "trackers: got 'trackio', which is not installed, wanted pip install 'antiphon[trackio]'"
    )


def test_a_folder_that_wandb_left_behind_is_not_taken_for_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb_like").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(FieldError, match="not installed"):
        check_installed(["wandb_like"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("trackers", "given", "expected"),
    [
        ((), None, ()),
        ((), {}, ("wandb",)),
        ((), {"project": "p", "entity": "e"}, ("wandb",)),
        ((), {"verbose": False}, ()),
        (("trackio", "trackio", "tensorboard"), None, ("trackio", "tensorboard")),
        (("trackio",), {"project": "p"}, ("trackio",)),
    ],
)
def test_who_is_told(trackers: Any, given: Any, expected: Any) -> None:
    """As in CoMLRL, Weights & Biases is on where `wandb_config` is given."""
    assert trackers_of(trackers, read_wandb_config(given)) == expected


def test_what_comlrl_scripts_put_into_wandb_config_is_taken() -> None:
    config = read_wandb_config(
        {
            "project": "p",
            "entity": None,
            "run_name": "r",
            "dir": "out",
            "tags": ["x"],
            "id": "i",
            "resume": "allow",
            "config_sections": {
                "output": {"verbose": False},
                "dataset": {"name": "d", "type": "t"},
            },
        }
    )
    assert config is not None
    assert (config.project, config.run_name_or("other"), config.dir) == ("p", "r", Path("out"))
    assert (config.tags, config.id, config.resume) == (("x",), "i", "allow")
    assert config.shows_progress is False
    assert config.config_entries["dataset_name"] == "d"
    assert config.config_entries["dataset_type"] == "t"
    assert config.config_entries["output"] == {"verbose": False}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"projct": "p"}, r"wandb_config\.projct: got an unknown key, wanted 'project'"),
        ({"mode": "of"}, r"wandb_config\.mode: got 'of'"),
        (["project"], "wandb_config: got list, wanted a mapping or None"),
    ],
)
def test_a_wandb_config_that_does_not_fit_is_refused(given: Any, expected: str) -> None:
    with pytest.raises(FieldError, match=expected):
        read_wandb_config(given)
