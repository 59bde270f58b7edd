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
        """The rows; FieldError where a file is not what its name says, or lacks a column."""
        rows = chain.from_iterable(_READERS[file.suffix.lower()](file) for file in self.files)
        for number, row in enumerate(islice(rows, self._limit)):
            yield self._renamed(row, number)

    def _renamed(self, row: Any, number: int) -> Any:
        if not isinstance(row, dict) or not self._columns:
            return row
        for old in self._columns.values():
            _check_column(old, list(row), f"dataset.columns, row {number}")
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


def _json(path: Path) -> Iterator[Any]:
    value = _parse(path, path.read_text(encoding="utf-8"), 1)
    if not isinstance(value, list):
        raise FieldError("dataset.path", f"{path}: {type(value).__name__}", "a list of rows")
    return iter(value)


def _jsonl(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
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
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _parquet(path: Path) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=PARQUET_ROWS):
            yield from batch.to_pylist()


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
    for new, old in settings.columns.items():
        _check_column(old, dataset.column_names or list(next(iter(dataset))), "dataset.columns")
        dataset = dataset.rename_column(old, new)
    return dataset if settings.limit is None else dataset.take(settings.limit)


def _check_column(column: str, columns: Sequence[str], field: str) -> None:
    if column not in columns:
        raise FieldError(field, repr(column), f"one of the columns {', '.join(columns)}")
