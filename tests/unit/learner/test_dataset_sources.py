"""What `[dataset]` can name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from antiphon.clients.types import FieldError
from antiphon.learner.data import Tasks
from antiphon.learner.dataset_sources import open_dataset
from antiphon.learner.run_config import DatasetSettings

ROWS = [{"question": "a", "level": {"n": 1}}, {"question": "b", "level": {"n": None}}]


def _write(path: Path) -> Path:
    if path.suffix == ".json":
        path.write_text(json.dumps(ROWS))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        datasets.Dataset.from_list(ROWS).to_parquet(str(path))
    return path


@pytest.mark.parametrize("kind", ["json", "jsonl", "parquet"])
def test_files_give_their_rows_as_they_are(tmp_path: Path, kind: str) -> None:
    path = _write(tmp_path / f"rows.{kind}")
    dataset = open_dataset(DatasetSettings(path=path))
    Tasks(dataset).check()
    assert list(dataset) == ROWS


def test_csv_values_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('prompt,answer\n"a, b",007\n')
    assert open_dataset(DatasetSettings(path=path)) == [{"prompt": "a, b", "answer": "007"}]


def test_columns_are_renamed_and_rows_cut(tmp_path: Path) -> None:
    path = _write(tmp_path / "rows.jsonl")
    settings = DatasetSettings(path=path, columns={"prompt": "question"}, limit=1)
    assert open_dataset(settings) == [{"prompt": "a", "level": {"n": 1}}]


def test_prompts_are_tasks() -> None:
    assert open_dataset(DatasetSettings(prompts=("a", "b"))) == [{"prompt": "a"}, {"prompt": "b"}]


def test_a_saved_dataset_is_opened_by_its_folder(tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    settings = DatasetSettings(
        name=str(tmp_path / "saved"), columns={"prompt": "question"}, limit=1
    )
    assert [row["prompt"] for row in open_dataset(settings)] == ["a"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "missing.jsonl"}, r"dataset\.path.*missing\.jsonl"),
        ({"path": "rows.txt"}, r"dataset\.path.*ends in .json"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(FieldError, match=message):
        open_dataset(DatasetSettings(**settings))


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": \n')
    with pytest.raises(FieldError, match=r"rows\.jsonl, line 2"):
        open_dataset(DatasetSettings(path=path))


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "rows.jsonl")
    with pytest.raises(FieldError, match="'text', wanted one of the columns question, level"):
        open_dataset(DatasetSettings(path=path, columns={"prompt": "text"}))
