"""What `--resume` and `resume_from_checkpoint` mean: which run, which checkpoint."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from antiphon.clients.types import FieldError
from antiphon.learner.checkpoints.resume import ended_for_good, find_resume
from antiphon.learner.checkpoints.store import CheckpointStore
from antiphon.learner.record.run_folder import RunFolder


def run_in(runs: Path, name: str, *, age: int = 0, checkpoints: tuple[int, ...] = ()) -> RunFolder:
    """A run's folder, last started `age` seconds ago, with checkpoints after so many prompts."""
    folder = RunFolder.create(runs, name)
    for prompts in checkpoints:
        save(folder, folder.path / "checkpoints", prompts)
    file = folder.path / "run.json"
    then = file.stat().st_mtime - age
    os.utime(file, (then, then))
    return folder


def save(folder: RunFolder, directory: Path, prompts: int, incarnation: int = 1) -> Path:
    about = {
        "run_id": folder.run_id,
        "run_directory": str(folder.path),
        "incarnation": incarnation,
        "prompts": prompts,
    }
    return CheckpointStore(directory).save(about, {}).path


@pytest.mark.parametrize("given", [None, False])
def test_nothing_is_resumed_unless_asked_for(tmp_path: Path, given: bool | None) -> None:
    run_in(tmp_path, "run", checkpoints=(1,))
    assert find_resume(given, runs=tmp_path) is None


@pytest.mark.parametrize("given", [True, "latest"])
def test_the_newest_run_and_its_newest_checkpoint_are_taken(
    tmp_path: Path, given: bool | str
) -> None:
    run_in(tmp_path, "old", age=60, checkpoints=(9,))
    new = run_in(tmp_path, "new", checkpoints=(2, 4))
    found = find_resume(given, runs=tmp_path)
    assert found is not None
    assert found.folder.run_id == new.run_id
    assert found.checkpoint is not None
    assert found.checkpoint.prompts == 4


def test_the_newest_run_of_a_name_counts_its_later_numbers(tmp_path: Path) -> None:
    run_in(tmp_path, "demo", age=60)
    second = run_in(tmp_path, "demo", age=30)
    run_in(tmp_path, "demonstration")
    found = find_resume(True, runs=tmp_path, name="demo")
    assert found is not None
    assert found.folder.path == second.path == tmp_path / "demo-2"


def test_the_newest_of_no_runs_is_none_so_that_a_new_one_begins(tmp_path: Path) -> None:
    assert find_resume(True, runs=tmp_path / "runs") is None


def test_a_run_s_folder_stands_for_its_newest_whole_checkpoint(tmp_path: Path) -> None:
    """S12: a damaged one is skipped with a note."""
    folder = run_in(tmp_path, "run", checkpoints=(2, 4))
    (folder.path / "checkpoints" / "checkpoint-00000004" / "complete.json").unlink()
    found = find_resume(folder.path, runs=tmp_path)
    assert found is not None
    assert found.checkpoint is not None
    assert found.checkpoint.prompts == 2
    assert "checkpoint-00000004 is unfinished" in found.notes[0]


def test_a_run_without_a_checkpoint_is_trained_from_the_beginning(tmp_path: Path) -> None:
    folder = run_in(tmp_path, "run")
    found = find_resume(str(folder.path), runs=tmp_path)
    assert found is not None
    assert (found.folder.path, found.checkpoint) == (folder.path, None)
    assert "from the beginning" in found.notes[0]


def test_one_checkpoint_can_be_named(tmp_path: Path) -> None:
    folder = run_in(tmp_path, "run", checkpoints=(2, 4))
    found = find_resume(folder.path / "checkpoints" / "checkpoint-00000002", runs=tmp_path)
    assert found is not None
    assert found.folder.path == folder.path
    assert found.checkpoint is not None
    assert found.checkpoint.prompts == 2


def test_a_damaged_checkpoint_that_is_named_is_refused_not_replaced(tmp_path: Path) -> None:
    folder = run_in(tmp_path, "run", checkpoints=(2, 4))
    path = folder.path / "checkpoints" / "checkpoint-00000004"
    (path / "checkpoint.json").write_text("{}")
    with pytest.raises(FieldError, match=r"resume_from_checkpoint: .*checkpoint.json has 2 bytes"):
        find_resume(path, runs=tmp_path)
    (path / "complete.json").unlink()
    with pytest.raises(FieldError, match="unfinished"):
        find_resume(path, runs=tmp_path)


def test_checkpoints_outside_the_run_folder_are_found_with_it_and_by_themselves(
    tmp_path: Path,
) -> None:
    runs, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    folder = run_in(runs, "run")
    folder.keep_checkpoints_in(elsewhere)
    save(folder, elsewhere, 3)
    for given, directory in ((folder.path, None), (elsewhere, None), (True, elsewhere)):
        found = find_resume(given, runs=runs, checkpoint_dir=directory)
        assert found is not None
        assert found.folder.path == folder.path
        assert found.checkpoint is not None
        assert found.checkpoint.prompts == 3


def test_the_newest_checkpoint_counts_wherever_a_run_kept_it(tmp_path: Path) -> None:
    """A run that was resumed with another folder for checkpoints leaves older ones in its own."""
    runs, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    folder = run_in(runs, "run", checkpoints=(2,))
    save(folder, elsewhere, 4, incarnation=2)
    folder.keep_checkpoints_in(elsewhere)
    for given in (folder.path, True):
        found = find_resume(given, runs=runs)
        assert found is not None
        assert found.checkpoint is not None
        assert found.checkpoint.prompts == 4


def test_a_run_folder_that_moved_is_found_around_its_checkpoint(tmp_path: Path) -> None:
    folder = run_in(tmp_path, "run", checkpoints=(2,))
    moved = tmp_path / "moved"
    folder.path.rename(moved)
    found = find_resume(moved / "checkpoints" / "checkpoint-00000002", runs=tmp_path)
    assert found is not None
    assert found.folder.path == moved
    assert found.folder.run_id == folder.run_id


def test_a_checkpoint_whose_run_folder_is_gone_gets_one_under_the_same_id(tmp_path: Path) -> None:
    """S7: the incarnation goes on counting, so the dead learner's pushes are not its own."""
    folder = run_in(tmp_path / "runs", "run")
    path = save(folder, tmp_path / "elsewhere", 3, incarnation=5)
    shutil.rmtree(folder.path)
    found = find_resume(path, runs=tmp_path / "runs")
    assert found is not None
    assert found.folder.run_id == folder.run_id
    assert found.folder.next_incarnation(0) == 6
    assert "is gone" in found.notes[0]


def test_what_is_no_run_and_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r'the folder of a run or of a checkpoint, or "latest"'):
        find_resume(tmp_path, runs=tmp_path)


def test_a_run_that_finished_without_a_checkpoint_has_ended_for_good(tmp_path: Path) -> None:
    folder = run_in(tmp_path, "run")
    assert not ended_for_good(folder, None)
    folder.write_json("summary.json", {"state": "stopped"})
    assert not ended_for_good(folder, None)
    folder.write_json("summary.json", {"state": "finished"})
    assert ended_for_good(folder, None)
    save(folder, folder.path / "checkpoints", 1)
    found = find_resume(folder.path, runs=tmp_path)
    assert found is not None
    assert not ended_for_good(folder, found.checkpoint)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "damaged JSON"), ("{}", "no state"), ('{"state": "over"}', 'state "over"')],
)
def test_a_damaged_summary_is_named_as_nobody_knows_whether_the_run_has_ended(
    tmp_path: Path, text: str, problem: str
) -> None:
    """S17"""
    folder = run_in(tmp_path, "run")
    (folder.path / "summary.json").write_text(text)
    with pytest.raises(FieldError, match=rf"summary\.json: got {problem}.*take it from a copy"):
        ended_for_good(folder, None)
