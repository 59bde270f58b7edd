"""Opens what `[dataset]` names."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from antiphon.clients.types import FieldError
from antiphon.learner.run_config import DatasetSettings


def open_dataset(settings: DatasetSettings) -> Any:
    """Open a dataset, renamed and cut as the settings say.

    Returns:
        A list of rows, or a `datasets.Dataset` where `name` is given.

    Raises:
        FieldError: A file that cannot be read, or a column to rename that is not there.
    """
    if settings.prompts:
        return [{"prompt": prompt} for prompt in settings.prompts[: settings.limit]]
    if settings.path is not None:
        rows = _read(settings.path)[: settings.limit]
        return [_renamed(row, settings, number) for number, row in enumerate(rows)]
    return _hub(settings)


def _read(path: Path) -> list[Any]:
    readers: dict[str, Callable[[Path], list[Any]]] = {
        ".json": _json,
        ".jsonl": _jsonl,
        ".csv": _csv,
        ".parquet": _parquet,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise FieldError("dataset.path", path, f"a file that ends in {', '.join(readers)}")
    if not path.is_file():
        raise FieldError("dataset.path", path, "a file that is there")
    return reader(path)


def _json(path: Path) -> list[Any]:
    value = _parse(path, path.read_text(encoding="utf-8"), 1)
    if not isinstance(value, list):
        raise FieldError("dataset.path", f"{path}: {type(value).__name__}", "a list of rows")
    return value


def _jsonl(path: Path) -> list[Any]:
    with path.open(encoding="utf-8") as file:
        return [_parse(path, line.rstrip(), n) for n, line in enumerate(file, 1) if line.strip()]


def _parse(path: Path, text: str, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = f"line {line + error.lineno - 1}, column {error.colno}"
        raise FieldError("dataset.path", f"{path}, {at}: {error.msg}", "JSON") from None


def _csv(path: Path) -> list[Any]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _parquet(path: Path) -> list[Any]:
    from pyarrow import parquet

    rows: list[Any] = parquet.read_table(path).to_pylist()
    return rows


def _hub(settings: DatasetSettings) -> Any:
    from datasets import load_dataset, load_from_disk

    name = str(settings.name)
    if Path(name).is_dir() and (
        (Path(name) / "state.json").exists() or (Path(name) / "dataset_dict.json").exists()
    ):
        dataset = load_from_disk(name)
        dataset = dataset[settings.split] if isinstance(dataset, dict) else dataset
    else:
        dataset = load_dataset(name, settings.config, split=settings.split)
    for new, old in settings.columns.items():
        _check_column(old, dataset.column_names, "dataset.columns")
        dataset = dataset.rename_column(old, new)
    if settings.limit is not None and settings.limit < len(dataset):
        dataset = dataset.select(range(settings.limit))
    return dataset


def _renamed(row: Any, settings: DatasetSettings, number: int) -> Any:
    if not isinstance(row, dict) or not settings.columns:
        return row
    for old in settings.columns.values():
        _check_column(old, list(row), f"dataset.columns, row {number}")
    names = {old: new for new, old in settings.columns.items()}
    return {names.get(column, column): value for column, value in row.items()}


def _check_column(column: str, columns: Sequence[str], field: str) -> None:
    if column not in columns:
        raise FieldError(field, repr(column), f"one of the columns {', '.join(columns)}")
