"""The run folder and its incarnations."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from antiphon.clients.types import FieldError
from antiphon.learner.record.run_folder import RunFolder, append_lines, write_atomically


def test_a_new_run_never_writes_into_an_old_ones_folder(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path / "runs", "demo")
    second = RunFolder.create(tmp_path / "runs", "demo")
    assert first.path.name == "demo"
    assert second.path.name == "demo-2"
    assert first.run_id != second.run_id


def test_an_opened_folder_is_the_same_run(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path, "demo")
    assert RunFolder.open(made.path).run_id == made.run_id


def test_it_stays_where_it_is_when_user_code_changes_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(Path("runs"), "demo")
    monkeypatch.chdir("/")
    assert folder.next_incarnation(0) == 1
    assert folder.path == tmp_path / "runs" / "demo"


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"run\.json"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"run_id": "a"}', "no incarnation"),
        ('{"run_id": "a", "incarnation": "x"}', 'incarnation "x"'),
        ('{"run_id": "a", "incarnation": true}', "incarnation true"),
        ('{"run_id": "a", "incarnation": -1}', "incarnation -1"),
        ('{"run_id": 5, "incarnation": 1}', "run_id 5"),
        ('{"run_id": "", "incarnation": 1}', 'run_id ""'),
        (
            '{"run_id": "a", "incarnation": 1, "checkpoint_directory": 5}',
            "checkpoint_directory 5",
        ),
        ("[]", "JSON that is no object"),
        ("{", "damaged JSON"),
    ],
)
def test_a_damaged_file_of_a_run_is_named_with_what_is_wrong(
    tmp_path: Path, text: str, problem: str
) -> None:
    """S17"""
    made = RunFolder.create(tmp_path, "demo")
    file = made.path / "run.json"
    file.write_text(text)
    wanted = f"{re.escape(str(file))}: got {re.escape(problem)}.*take it from a copy"
    with pytest.raises(FieldError, match=wanted):
        RunFolder.open(made.path)
    with pytest.raises(FieldError, match=wanted):  # of one that is open, too
        made.next_incarnation(0)


@pytest.mark.parametrize("name", ["", "..", "a/b", "/abs"])
def test_a_name_that_leaves_the_parent_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FieldError, match=r"run\.name"):
        RunFolder.create(tmp_path, name)


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for parent in (tmp_path / "file", tmp_path / "file" / "runs", Path("/proc/runs")):
        with pytest.raises(FieldError, match=r"run\.directory.*can be written"):
            RunFolder.create(parent, "demo")


def test_incarnations_grow_over_what_folder_and_receivers_know(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo")
    assert folder.next_incarnation(0) == 1
    assert folder.next_incarnation(0) == 2
    assert folder.next_incarnation(7) == 8
    assert RunFolder.open(folder.path).next_incarnation(3) == 9


def test_an_incarnation_is_on_disk_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(tmp_path, "demo")
    flushed: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (flushed.append(fd), fsync(fd)))
    assert folder.next_incarnation(0) == 1
    assert json.loads((folder.path / "run.json").read_text())["incarnation"] == 1
    assert len(flushed) == 2  # the file, then the folder that names it


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, "old")

    def full_disk(fd: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"


def test_agents_count_from_zero(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo")
    assert folder.agent_folder(0).name == "agent_0"


def test_rows_beyond_a_checkpoint_are_cut_off_half_a_row_included(tmp_path: Path) -> None:
    """S12: a row that a kill cut short is gone too."""
    folder = RunFolder.create(tmp_path, "demo")
    assert folder.metrics_size() == 0
    folder.cut_metrics(0)
    append_lines(folder.metrics_file, [{"prompts": 1}])
    size = folder.metrics_size()
    append_lines(folder.metrics_file, [{"prompts": 2}])
    with folder.metrics_file.open("a") as file:
        file.write('{"promp')
    folder.cut_metrics(size)
    assert folder.metrics_file.read_text() == '{"prompts": 1}\n'
    append_lines(folder.metrics_file, [{"prompts": 2}])
    assert len(folder.metrics_file.read_text().splitlines()) == 2


def test_where_checkpoints_are_kept_survives_the_next_incarnation(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo")
    assert folder.checkpoint_directory is None
    folder.keep_checkpoints_in(tmp_path / "elsewhere")
    folder.next_incarnation(3)
    opened = RunFolder.open(folder.path)
    assert opened.checkpoint_directory == tmp_path / "elsewhere"
    assert (opened.incarnation, opened.run_id) == (4, folder.run_id)
    folder.keep_checkpoints_in(None)
    assert opened.checkpoint_directory is None


def test_a_folder_that_is_gone_is_made_again_but_never_over_another(tmp_path: Path) -> None:
    """S7: incarnations go on where the checkpoint's left off."""
    folder = RunFolder.make_again(tmp_path / "runs" / "demo", "demo-1234", 5)
    assert (folder.run_id, folder.next_incarnation(0)) == ("demo-1234", 6)
    with pytest.raises(FieldError, match="or an empty one"):
        RunFolder.make_again(folder.path, "demo-1234", 5)
