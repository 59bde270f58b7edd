"""The folder of a run: what is where, and what must be on disk before it is used.

    config.json                the resolved settings
    run.json                   the run's id and incarnation
    metrics.jsonl              a row of figures per line
    checkpoints/               where to go on from (`checkpoint_store`)
    rollouts/*.parquet         a joint action per row: prompts, answers, rewards, advantages
    agent_0/, agent_1/, ...    the trained models
    best/                      the models of the best evaluation (`best_models`)
    summary.json, SUMMARY.md   how it ended

docs/records.md has the rest. Files that are replaced are written beside, flushed to disk and
renamed, so none is ever half there; the `.jsonl` files grow by whole lines.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from antiphon.clients.types import FieldError

_RUN_FILE = "run.json"
_WRITABLE = "a folder that can be written to"
_AS_WRITTEN = "what the run wrote; take it from a copy, or move it away"
_INCARNATIONS = 2**64
"""As many as the contract can count."""


class RunFolder:
    """One run's folder. Made by `create` or `open`.

    Attributes:
        path: The folder; absolute, as user code may change the working directory.
        run_id: The run's id, the same for as long as the folder lives.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path.absolute()
        self.run_id = run_id

    @classmethod
    def create(
        cls, parent: Path, name: str | None = None, *, run_id: str | None = None
    ) -> RunFolder:
        """Make a new folder; where `name` is taken, ``name-2``, ``name-3``, ... is made.

        Args:
            parent: Made where it is not there.
            name: Name of the folder; None takes the date and time.
            run_id: The run's id; None makes one.

        Raises:
            FieldError: `name` is no plain folder name, or nothing can be written to `parent`.
        """
        wanted = time.strftime("%Y%m%d-%H%M%S") if name is None else name
        check_run_name(wanted)
        try:
            parent.mkdir(parents=True, exist_ok=True)
            path = _new_folder(parent, wanted)
        except OSError as error:
            raise FieldError("run.directory", f"{parent} ({error.strerror})", _WRITABLE) from error
        folder = cls(path, run_id or f"{path.name}-{secrets.token_hex(4)}")
        folder._store(incarnation=0)
        (path / "rollouts").mkdir()
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open the folder of a run that was made earlier.

        Raises:
            FieldError: It is not the folder of a run, or `run.json` is damaged.
        """
        file = path / _RUN_FILE
        if not file.is_file():
            raise FieldError("run folder", path, f"a folder that holds {_RUN_FILE}")
        return cls(path, _read_about(file)["run_id"])

    @classmethod
    def make_again(cls, path: Path, run_id: str, incarnation: int) -> RunFolder:
        """Make the folder of an earlier run that is gone, under the run's own id.

        Args:
            path: Where; a folder that is there already must be empty.
            run_id: The run's id.
            incarnation: The largest that is known.

        Raises:
            FieldError: There is something in it.
        """
        if path.is_dir() and any(path.iterdir()):
            raise FieldError("run folder", path, f"the folder of run {run_id}, or an empty one")
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path, run_id)
        folder._store(incarnation=incarnation)
        (path / "rollouts").mkdir()
        return folder

    @property
    def incarnation(self) -> int:
        """The incarnation stored last, 0 before the first."""
        return int(_read_about(self.path / _RUN_FILE)["incarnation"])

    def next_incarnation(self, found: int) -> int:
        """Take the next incarnation number; it is on disk when this returns.

        Args:
            found: The largest incarnation of this run that a receiver knows, 0 where none does.

        Returns:
            1 + the larger of `found` and what the folder holds.
        """
        incarnation = 1 + max(found, self.incarnation)
        self._store(incarnation=incarnation)
        return incarnation

    @property
    def checkpoint_directory(self) -> Path | None:
        """Where the run keeps its checkpoints, None for `checkpoints` in this folder."""
        given = _read_about(self.path / _RUN_FILE).get("checkpoint_directory")
        return None if given is None else Path(given)

    def keep_checkpoints_in(self, directory: Path | None) -> None:
        """Store where the run keeps its checkpoints."""
        self._store(checkpoint_directory=None if directory is None else str(directory))

    @property
    def metrics_file(self) -> Path:
        """Rows of figures."""
        return self.path / "metrics.jsonl"

    @property
    def rollouts_folder(self) -> Path:
        """Trees, as Parquet files (`rollout_rows` says what is in them)."""
        return self.path / "rollouts"

    def metrics_size(self) -> int:
        """Bytes of the metrics so far, which are on disk when this returns."""
        if not self.metrics_file.exists():
            return 0
        with self.metrics_file.open("ab") as file:
            os.fsync(file.fileno())
            return file.tell()

    def cut_metrics(self, size: int) -> None:
        """Forget the rows of the metrics beyond this many bytes, half a row included."""
        if self.metrics_file.exists() and self.metrics_file.stat().st_size > size:
            os.truncate(self.metrics_file, size)

    def agent_folder(self, agent: int) -> Path:
        """Where an agent's trained model is."""
        return self.path / f"agent_{agent}"

    def write_config(self, config: Mapping[str, Any]) -> Path:
        """Store the resolved settings (JSON values)."""
        return self.write_json("config.json", config)

    def write_json(self, name: str, value: Mapping[str, Any]) -> Path:
        """Write a JSON file of the folder at once."""
        return self.write_text(name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> Path:
        """Write a text file of the folder at once."""
        path = self.path / name
        write_atomically(path, text)
        return path

    def _store(self, **changes: Any) -> None:
        file = self.path / _RUN_FILE
        before = _read_about(file) if file.is_file() else {}
        self.write_json(_RUN_FILE, {"run_id": self.run_id, **before, **changes})


def _read_about(file: Path) -> dict[str, Any]:
    """What a run's `run.json` says.

    Raises:
        FieldError: It is damaged.
    """
    about = json_object(file.read_bytes(), str(file))
    run_id, incarnation = about.get("run_id"), about.get("incarnation")
    directory = about.get("checkpoint_directory")
    if not isinstance(run_id, str) or not run_id:
        raise damaged_value(file, "run_id", run_id)
    if type(incarnation) is not int or not 0 <= incarnation < _INCARNATIONS:
        raise damaged_value(file, "incarnation", incarnation)
    if directory is not None and not isinstance(directory, str):
        raise damaged_value(file, "checkpoint_directory", directory)
    return about


def damaged_value(file: Path, name: str, value: object) -> FieldError:
    """The error for a file of a run folder in which a value is not as the run writes it."""
    got = f"no {name}" if value is None else f"{name} {json.dumps(value)[:80]}"
    return FieldError(str(file), got, _AS_WRITTEN)


def json_object(text: bytes, where: str) -> dict[str, Any]:
    """Read what a file of a run folder holds.

    Args:
        text: One JSON object.
        where: The file, for the error.

    Raises:
        FieldError: It is damaged.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = f"damaged JSON ({error})"
    else:
        if isinstance(value, dict):
            return value
        problem = "JSON that is no object"
    raise FieldError(where, problem, _AS_WRITTEN)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file so that, whatever happens, it holds the old text or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def append_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Append a JSON object per line. Numbers that JSON does not know are written as null."""
    with path.open("a", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(_without_nan(line), ensure_ascii=False, allow_nan=False) + "\n")


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(inner) for inner in value]
    return value


def check_run_name(name: object, field: str = "run.name") -> None:
    """Refuse what cannot be the name of a run's folder.

    Raises:
        FieldError: It is no text, empty, or a path.
    """
    plain = isinstance(name, str) and name not in ("", ".", "..") and Path(name).name == name
    if not plain or "\0" in str(name):
        raise FieldError(field, repr(name), "the name of a folder, without a path")


def check_writable(parent: Path) -> None:
    """Refuse a folder for runs that could not be made or written to.

    Raises:
        FieldError: Naming the nearest folder that is there.
    """
    there = next(path for path in (parent.absolute(), *parent.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise FieldError("run.directory", f"{parent} ({there} cannot be written to)", _WRITABLE)


def free_path(parent: Path, name: str) -> Path:
    """The folder that a run of this name would get now: ``name``, ``name-2``, ``name-3``, ..."""
    return next(path for path in _paths(parent, name) if not os.path.lexists(path))


def _new_folder(parent: Path, name: str) -> Path:
    for path in _paths(parent, name):
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
    raise AssertionError("names do not end")


def _paths(parent: Path, name: str) -> Iterator[Path]:
    yield parent / name
    for number in count(2):
        yield parent / f"{name}-{number}"
