"""Checkpoints on disk: written whole or not at all, checked when they are read, pruned.

    checkpoints/checkpoint-00000012/    after 12 prompts
        checkpoint.json                 whose it is and where it stands
        policy_0.json, .safetensors     a component's state (`state_files`), one each; of a policy
                                        of several ranks, a folder with each rank's tensors
        complete.json                   the completion mark: size and checksum of every file

A checkpoint is written to a folder with a leading dot, flushed to disk file by file, marked
complete, and renamed. What has no mark is unfinished; what differs from its mark is damaged.
"""

from __future__ import annotations

import json
import mmap
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.clients.digest import tensor_checksum
from antiphon.clients.types import FieldError
from antiphon.learner.checkpoints.state_files import Part, flush, read_state, save_part, write_state
from antiphon.learner.record.run_folder import write_atomically

FORMAT = 1
MARK = "complete.json"
ABOUT = "checkpoint"
PREFIX = "checkpoint-"
_UNFINISHED, _DELETED = ".unfinished-", ".deleted-"


class DamagedError(Exception):
    """A folder is no whole checkpoint; says why."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is complete.

    Attributes:
        path: Its folder.
        about: All that was said of it when it was written.
    """

    path: Path
    about: Mapping[str, Any]

    @property
    def run_id(self) -> str:
        """The run that it is of."""
        return str(self.about["run_id"])

    @property
    def incarnation(self) -> int:
        """Which of the run's learner processes wrote it."""
        return int(self.about["incarnation"])

    @property
    def prompts(self) -> int:
        """Prompts trained when it was written, over all epochs."""
        return int(self.about["prompts"])

    @property
    def age(self) -> tuple[int, int]:
        """Orders a run's checkpoints: those of a later learner are newer, whatever their number."""
        return self.incarnation, self.prompts

    def holds(self, name: str) -> bool:
        """Whether there is state of a component of this name."""
        return name != ABOUT and (self.path / f"{name}.json").is_file()

    def state(self, name: str) -> dict[str, Any]:
        """A component's state."""
        return read_state(self.path, name)


def read_checkpoint(path: Path, *, verify: bool = True) -> Checkpoint:
    """Read what a checkpoint says of itself.

    Args:
        path: Its folder.
        verify: Whether every file is read and compared with the mark, or only its size.

    Raises:
        DamagedError: It is unfinished or damaged.
    """
    mark = path / MARK
    if not mark.is_file():
        raise DamagedError(f"{path} is unfinished: it has no {MARK}")
    try:
        complete = json.loads(mark.read_text(encoding="utf-8"))
        version, files = complete["format"], dict(complete["files"])
        wanted = {name: (int(f["bytes"]), str(f["xxh3_128"])) for name, f in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DamagedError(f"{path} is damaged: {MARK} is not readable ({error})") from error
    if version != FORMAT:
        raise DamagedError(f"{path} has format {version!r}, wanted {FORMAT}")
    for name, (size, checksum) in wanted.items():
        file = path / name
        if not file.is_file():
            raise DamagedError(f"{path} is damaged: {name} is missing")
        if file.stat().st_size != size:
            raise DamagedError(
                f"{path} is damaged: {name} has {file.stat().st_size} bytes, wanted {size}"
            )
        if (verify or name == f"{ABOUT}.json") and _checksum(file) != checksum:
            raise DamagedError(f"{path} is damaged: {name} has another checksum than it should")
    if f"{ABOUT}.json" not in wanted:
        raise DamagedError(f"{path} is damaged: {MARK} does not name {ABOUT}.json")
    return Checkpoint(path, read_state(path, ABOUT))


class CheckpointStore:
    """The checkpoints of one folder.

    Args:
        directory: Made when the first one is saved.
        after: Told the name of every step of saving once it is done, in order: ``component``
            (once for each), ``marked``, ``flushed``, ``renamed``, ``pruned``.
    """

    def __init__(self, directory: Path, after: Callable[[str], None] | None = None) -> None:
        self.directory = directory
        self._after = after or (lambda _: None)

    def save(
        self,
        about: Mapping[str, Any],
        components: Mapping[str, Part],
        *,
        total_limit: int | None = None,
    ) -> Checkpoint:
        """Write a checkpoint, then prune. It is on disk when this returns.

        Args:
            about: Plain values; `run_id`, `incarnation` and `prompts` at least.
            components: Whose state it holds, by name.
            total_limit: Checkpoints of this run to keep, this one included; None keeps all.

        Raises:
            Exception: It could not be written; those that were there still are.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self._sweep()
        path = self._free_path(f"{PREFIX}{about['prompts']:08}")
        unfinished = self.directory / f"{_UNFINISHED}{path.name}"
        try:
            unfinished.mkdir()
            write_state(unfinished, ABOUT, about)
            for component_name, component in components.items():
                save_part(unfinished, component_name, component)
                self._after("component")
            _mark(unfinished)
            self._after("marked")
            flush(unfinished)
            self._after("flushed")
            unfinished.rename(path)
            flush(self.directory)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        self._after("renamed")
        saved = read_checkpoint(path, verify=False)
        self._prune(saved, total_limit)
        self._after("pruned")
        return saved

    def complete(self) -> tuple[list[Checkpoint], list[str]]:
        """Checkpoints that look whole by their sizes, newest first, and why others do not."""
        found, notes = [], []
        for path in self._folders():
            try:
                found.append(read_checkpoint(path, verify=False))
            except DamagedError as error:
                notes.append(str(error))
        return sorted(found, key=lambda checkpoint: checkpoint.age, reverse=True), notes

    def newest(self, run_id: str | None = None) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is whole, read and compared, and why others are skipped.

        Args:
            run_id: Of this run only.
        """
        found, notes = self.complete()
        for checkpoint in found:
            if run_id is not None and checkpoint.run_id != run_id:
                continue
            try:
                return read_checkpoint(checkpoint.path), notes
            except DamagedError as error:
                notes.append(str(error))
        return None, notes

    def refuse_others(self, run_id: str) -> None:
        """Refuse a folder that holds checkpoints of another run.

        Raises:
            FieldError: Names one.
        """
        for checkpoint in self.complete()[0]:
            if checkpoint.run_id != run_id:
                raise FieldError(
                    "checkpoint_dir",
                    f"{self.directory}, with {checkpoint.path.name} of run {checkpoint.run_id}",
                    "a folder without checkpoints of another run, or resume_from_checkpoint to go "
                    "on with that run",
                )

    def _free_path(self, name: str) -> Path:
        """A path that is not taken: none of those that are there is ever written over."""
        path, number = self.directory / name, 1
        while path.exists():
            number += 1
            path = self.directory / f"{name}-{number}"
        return path

    def _folders(self) -> Iterator[Path]:
        if self.directory.is_dir():
            yield from sorted(p for p in self.directory.glob(f"{PREFIX}*") if p.is_dir())

    def _prune(self, saved: Checkpoint, total_limit: int | None) -> None:
        """Delete this run's oldest beyond the limit; what looks damaged is not counted."""
        if total_limit is None:
            return
        others = [
            c for c in self.complete()[0] if c.run_id == saved.run_id and c.path != saved.path
        ]
        for checkpoint in others[max(0, total_limit - 1) :]:
            self._delete(checkpoint.path)

    def _sweep(self) -> None:
        """Remove what learners that were killed left in the middle of saving or deleting."""
        for left in (_UNFINISHED, _DELETED):
            for path in self.directory.glob(f"{left}{PREFIX}*"):
                shutil.rmtree(path)

    def _delete(self, path: Path) -> None:
        """Delete at once: under its name the folder is there whole or not at all."""
        aside = path.with_name(f"{_DELETED}{path.name}")
        path.rename(aside)
        shutil.rmtree(aside)


def _mark(folder: Path) -> None:
    inside = sorted(folder.rglob("*"))
    for inner in inside:
        if inner.is_dir():
            flush(inner)
    files = {
        file.relative_to(folder).as_posix(): {
            "bytes": file.stat().st_size,
            "xxh3_128": _checksum(file),
        }
        for file in inside
        if file.is_file()
    }
    mark = {"format": FORMAT, "files": files}
    write_atomically(folder / MARK, json.dumps(mark, indent=2) + "\n")


def _checksum(file: Path) -> str:
    if file.stat().st_size == 0:
        return tensor_checksum(b"").hex()
    with (
        file.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
        memoryview(data) as view,
    ):
        return tensor_checksum(view).hex()
