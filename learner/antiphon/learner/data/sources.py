"""Opens what `[dataset]` names."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from antiphon.clients.types import FieldError
from antiphon.learner.config.dataset import DatasetSettings

PARQUET_ROWS = 1000
"""Rows of a Parquet file that are read at once."""

CSV_FIELD = 2**31 - 1
"""Most characters of a CSV field; the module's own limit is too short for a text."""

ENCODING = "utf-8-sig"
"""UTF-8, with the mark at the beginning that spreadsheets write, or without."""


def open_dataset(settings: DatasetSettings) -> Any:
    """Open a dataset, renamed and cut as the settings say.

    Returns:
        A list of rows, or a `FileRows` where they are streamed; a `datasets.Dataset` or
        `IterableDataset` where `name` is given.

    Raises:
        FieldError: A file that cannot be read, or a column to rename that is not there.
    """
    if settings.prompts:
        return [{"prompt": prompt} for prompt in settings.prompts[: settings.limit]]
    if settings.path is None:
        return _named(settings)
    given = settings.path if isinstance(settings.path, tuple) else (settings.path,)
    paths = [path.expanduser() for path in given]
    if len(paths) == 1 and _saved_to_disk(paths[0]):
        return _changed(_from_disk(paths[0], settings), settings)
    rows = FileRows(paths, columns=settings.columns, limit=settings.limit)
    return rows if settings.streaming else list(rows)


class FileRows:
    """The rows of files, one file after the other, read anew whenever they are iterated.

    Args:
        paths: Files and folders.
        columns: Columns to rename, new name to name in the file.
        limit: Most rows.

    Raises:
        FieldError: A file is not there or of an unknown kind, or a folder holds none.
    """

    def __init__(
        self, paths: Sequence[Path], *, columns: Mapping[str, str], limit: int | None
    ) -> None:
        self.files = tuple(chain.from_iterable(map(_files, paths)))
        self._columns = columns
        self._limit = limit

    def __iter__(self) -> Iterator[Any]:
        """The rows; FieldError where a file is not what its name says, or a column not as named."""
        rows = chain.from_iterable(map(_rows, self.files))
        for number, row in enumerate(islice(rows, self._limit)):
            yield self._renamed(row, number)

    def _renamed(self, row: Any, number: int) -> Any:
        if not isinstance(row, dict) or not self._columns:
            return row
        _check_columns(self._columns, list(row), f"dataset.columns, row {number}")
        names = {old: new for new, old in self._columns.items()}
        return {names.get(column, column): value for column, value in row.items()}


def _files(path: Path) -> list[Path]:
    kinds = ", ".join(_READERS)
    if path.is_dir():
        below = (file for file in path.rglob("*") if file.suffix.lower() in _READERS)
        shown = (f for f in below if not any(p.startswith(".") for p in f.relative_to(path).parts))
        if files := sorted(file for file in shown if file.is_file()):
            return files
        raise FieldError("dataset.path", path, f"a folder with files that end in {kinds}")
    if path.suffix.lower() not in _READERS:
        raise FieldError("dataset.path", path, f"a file that ends in {kinds}, or a folder of them")
    if not path.is_file():
        raise FieldError("dataset.path", path, "a file that is there")
    return [path]


def _rows(path: Path) -> Iterator[Any]:
    try:
        yield from _READERS[path.suffix.lower()](path)
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise FieldError(
            "dataset.path",
            f"{path}, which is not UTF-8: byte 0x{byte:02x}, {error.reason}",
            "a file in UTF-8, as `iconv -f latin1 -t utf-8` makes of one in Latin-1",
        ) from None


def _json(path: Path) -> Iterator[Any]:
    value = _parse(path, path.read_text(encoding=ENCODING), 1)
    if not isinstance(value, list):
        raise FieldError("dataset.path", f"{path}: {type(value).__name__}", "a list of rows")
    return iter(value)


def _jsonl(path: Path) -> Iterator[Any]:
    with path.open(encoding=ENCODING) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _parse(path, line.rstrip(), number)


def _parse(path: Path, text: str, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = f"line {line + error.lineno - 1}, column {error.colno}"
        raise FieldError("dataset.path", f"{path}, {at}: {error.msg}", "JSON") from None


def _csv(path: Path) -> Iterator[Any]:
    csv.field_size_limit(CSV_FIELD)
    with path.open(encoding=ENCODING, newline="") as file:
        # Strict: a quote that is never closed would make one field of all the rows that follow.
        reader = csv.DictReader(file, strict=True)
        try:
            yield from reader
        except csv.Error as error:
            raise FieldError(
                "dataset.path",
                f"{path}, the row from line {reader.line_num + 1} on: {error}",
                'CSV: a text in quotes ends with one, and has "" for each of its own',
            ) from None


def _parquet(path: Path) -> Iterator[Any]:
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise FieldError(
            "dataset.path",
            f"{path}: {error}",
            "a Parquet file that is whole; copy or write it again",
        ) from error


_READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    ".json": _json,
    ".jsonl": _jsonl,
    ".csv": _csv,
    ".parquet": _parquet,
}


def _saved_to_disk(path: Path) -> bool:
    return any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))


def _from_disk(path: Path, settings: DatasetSettings) -> Any:
    from datasets import load_from_disk

    dataset = load_from_disk(str(path))
    if isinstance(dataset, dict):
        if settings.split not in dataset:
            raise FieldError("dataset.split", repr(settings.split), " or ".join(dataset))
        dataset = dataset[settings.split]
    return dataset.to_iterable_dataset() if settings.streaming else dataset


def _named(settings: DatasetSettings) -> Any:
    import datasets

    assert settings.name is not None  # one source is given, which the run's settings check
    if _saved_to_disk(Path(settings.name)):
        return _changed(_from_disk(Path(settings.name), settings), settings)
    dataset = datasets.load_dataset(
        settings.name,
        settings.config,
        split=settings.split,
        revision=settings.revision,
        streaming=settings.streaming,
    )
    return _changed(dataset, settings)


def _changed(dataset: Any, settings: DatasetSettings) -> Any:
    """A `Dataset` or `IterableDataset`, renamed and cut."""
    names = {old: new for new, old in settings.columns.items() if new != old}
    if settings.columns:
        present = dataset.column_names or list(next(iter(dataset)))
        _check_columns(settings.columns, present, "dataset.columns")
    if any(new in names for new in names.values()):
        # A name becomes free only when its column is renamed too: all step aside first.
        aside = {old: f"{new} (was {old})" for old, new in names.items()}
        dataset = dataset.rename_columns(aside)
        names = {aside[old]: new for old, new in names.items()}
    if names:
        dataset = dataset.rename_columns(names)
    return dataset if settings.limit is None else dataset.take(settings.limit)


def _check_columns(columns: Mapping[str, str], present: Sequence[str], field: str) -> None:
    """Refuse renames that lack their column, or hide another one."""
    renamed = list(columns.values())
    for new, old in columns.items():
        if old not in present:
            raise FieldError(field, repr(old), f"one of the columns {', '.join(present)}")
        if renamed.count(old) > 1:
            raise FieldError(field, f"several new names for {old!r}", "one for each column")
        if new in present and new not in renamed:
            raise FieldError(
                field,
                f"{new!r} for {old!r}, beside a column {new!r}",
                "a new name that no column has, or a new name for that column too",
            )
