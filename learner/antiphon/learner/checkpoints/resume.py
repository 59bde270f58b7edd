"""Finds the run and the checkpoint that `--resume` and `resume_from_checkpoint` mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.clients.types import FieldError, RunState
from antiphon.learner.checkpoints.resume_rules import check_resume
from antiphon.learner.checkpoints.store import (
    MARK,
    PREFIX,
    Checkpoint,
    CheckpointStore,
    DamagedError,
    read_checkpoint,
)
from antiphon.learner.config.checkpoints import CheckpointSettings
from antiphon.learner.record.description import described
from antiphon.learner.record.run_folder import RunFolder, damaged_value, json_object
from antiphon.learner.run.setup import RunSetup

LATEST = "latest"
_FIELD = "resume_from_checkpoint"


@dataclass(frozen=True)
class Resume:
    """Where to go on.

    Attributes:
        folder: The run's folder.
        checkpoint: The checkpoint to go on from; None where the run has none that is whole, so it
            is trained from the beginning.
        notes: What the user should know: checkpoints that were skipped, settings that changed.
    """

    folder: RunFolder
    checkpoint: Checkpoint | None
    notes: tuple[str, ...] = ()


def find_resume(
    given: bool | str | Path | None,
    *,
    runs: Path,
    name: str | None = None,
    checkpoint_dir: Path | None = None,
) -> Resume | None:
    """Find what to resume; None where nothing is to be.

    Args:
        given: None or False; True or ``"latest"`` for the newest run, a new one where there is
            none; the folder of a run, of one checkpoint, or one that holds checkpoints.
        runs: Where run folders are.
        name: Name of the run, None for any.
        checkpoint_dir: Where checkpoints are kept outside the run folder, None for nowhere.

    Raises:
        FieldError: There is nothing of the kind, or the checkpoint that was named is damaged.
    """
    if given is None or given is False:
        return None
    if given is True or given == LATEST:
        return _latest(runs, name, checkpoint_dir)
    path = Path(given).expanduser().absolute()
    if (path / MARK).is_file() or (path.name.startswith(PREFIX) and path.is_dir()):
        try:
            return _of_checkpoint(read_checkpoint(path), runs, [])
        except DamagedError as error:
            raise FieldError(_FIELD, str(error), "a whole checkpoint") from error
    if (path / "run.json").is_file():
        return _of_run(RunFolder.open(path), checkpoint_dir)
    if any(path.glob(f"{PREFIX}*")):
        checkpoint, notes = CheckpointStore(path).newest()
        if checkpoint is None:
            raise FieldError(_FIELD, "; ".join(notes), "a whole checkpoint")
        return _of_checkpoint(checkpoint, runs, notes)
    raise FieldError(_FIELD, path, f'the folder of a run or of a checkpoint, or "{LATEST}"')


def open_run(
    setup: RunSetup,
    resolved: Mapping[str, Any],
    *,
    runs: Path,
    name: str | None,
    checkpoints: CheckpointSettings,
    resume_from: bool | str | Path | None,
    run_id: str | None = None,
) -> Resume:
    """The folder of the run that is to train: that of the one to resume, or a new one.

    Args:
        setup: The run.
        resolved: What it was told, for the folder's config.json.
        runs: Where run folders are.
        name: Name of a new run's folder, None for date and time.
        checkpoints: Where checkpoints go.
        resume_from: What to resume (`find_resume`).
        run_id: Id of a new run, None to make one.

    Raises:
        FieldError: What is to be resumed is not there, or a setting changed that may not, or
            checkpoints of another run are in the way.
    """
    resume = find_resume(resume_from, runs=runs, name=name, checkpoint_dir=checkpoints.directory)
    if resume is None:
        folder = RunFolder.create(runs, name, run_id=run_id)
        which = f"no run named {name}" if name else "no run"
        notes = [f"there is {which} in {runs} to resume: this is a new one"] if resume_from else []
    else:
        folder, notes = resume.folder, list(resume.notes)
        if resume.checkpoint is not None:
            notes.append(f"goes on from {resume.checkpoint.path}")
            notes += check_resume(resume.checkpoint.about["description"], described(setup))
    checkpoint = None if resume is None else resume.checkpoint
    if checkpoints.directory is not None:
        CheckpointStore(checkpoints.directory).refuse_others(folder.run_id)
    folder.keep_checkpoints_in(checkpoints.directory)
    if not ended_for_good(folder, checkpoint):
        folder.write_config(resolved)
    return Resume(folder, checkpoint, tuple(notes))


def ended_for_good(folder: RunFolder, checkpoint: Checkpoint | None) -> bool:
    """Whether a run has finished and kept no checkpoint, so that nothing can be resumed.

    Raises:
        FieldError: The summary, which says whether it has, is damaged.
    """
    summary = folder.path / "summary.json"
    if checkpoint is not None or not summary.is_file():
        return False
    state = json_object(summary.read_bytes(), str(summary)).get("state")
    if state not in [known.value for known in RunState]:
        raise damaged_value(summary, "state", state)
    return bool(state == RunState.FINISHED.value)


def _latest(runs: Path, name: str | None, checkpoint_dir: Path | None) -> Resume | None:
    if checkpoint_dir is not None:
        checkpoint, notes = CheckpointStore(checkpoint_dir).newest()
        if checkpoint is not None:
            return _of_checkpoint(checkpoint, runs, notes)
    pattern = re.compile(r".*" if name is None else re.escape(name) + r"(-\d+)?")
    found = [file for file in runs.glob("*/run.json") if pattern.fullmatch(file.parent.name)]
    if not found:
        return None
    newest = max(found, key=lambda file: file.stat().st_mtime_ns)
    return _of_run(RunFolder.open(newest.parent), checkpoint_dir)


def _of_run(folder: RunFolder, checkpoint_dir: Path | None) -> Resume:
    """The newest checkpoint of a run, wherever it kept them and where this call keeps them."""
    directories = (folder.path / "checkpoints", folder.checkpoint_directory, checkpoint_dir)
    found: list[Checkpoint] = []
    notes: list[str] = []
    for directory in dict.fromkeys(d for d in directories if d is not None):
        checkpoint, skipped = CheckpointStore(directory).newest(folder.run_id)
        notes += skipped
        if checkpoint is not None:
            found.append(checkpoint)
    if found:
        return Resume(folder, max(found, key=lambda checkpoint: checkpoint.age), tuple(notes))
    notes.append(f"run {folder.run_id} has no checkpoint and is trained from the beginning")
    return Resume(folder, None, tuple(notes))


def _of_checkpoint(checkpoint: Checkpoint, runs: Path, notes: list[str]) -> Resume:
    """The run of a checkpoint: around it, where it was, or made again under its id."""
    recorded = Path(checkpoint.about["run_directory"])
    for path in (checkpoint.path.parent.parent, recorded):
        if (path / "run.json").is_file():
            folder = RunFolder.open(path)
            if folder.run_id == checkpoint.run_id:
                return Resume(folder, checkpoint, tuple(notes))
    folder = RunFolder.make_again(runs / recorded.name, checkpoint.run_id, checkpoint.incarnation)
    note = f"the folder of run {checkpoint.run_id} is gone; its record begins anew in {folder.path}"
    return Resume(folder, checkpoint, (*notes, note))
