"""What `[dataset]` can name."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from antiphon.clients.types import FieldError
from antiphon.learner.config.dataset import DatasetSettings
from antiphon.learner.data.sources import open_dataset
from antiphon.learner.data.tasks import Tasks

ROWS = [{"question": "a", "level": {"n": 1}}, {"question": "b", "level": {"n": None}}]


def _write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        path.write_text(json.dumps(ROWS))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        datasets.Dataset.from_list(ROWS).to_parquet(str(path))
    return path


def _questions(dataset: Any) -> list[str]:
    return [row["question"] for row in dataset]


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


def test_a_split_of_a_saved_dataset_is_opened_as_a_stream(tmp_path: Path) -> None:
    both = datasets.DatasetDict(
        {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS[1:])}
    )
    both.save_to_disk(str(tmp_path / "saved"))
    settings = DatasetSettings(
        path=tmp_path / "saved",
        split="test",
        streaming=True,
        columns={"prompt": "question"},
        limit=5,
    )
    tasks = Tasks(open_dataset(settings))
    assert tasks.length is None
    assert [row.task.item["prompt"] for row in tasks.epoch()] == ["b"]
    with pytest.raises(FieldError, match=r"dataset\.split: got 'dev', wanted train or test"):
        open_dataset(settings.model_copy(update={"split": "dev"}))


def test_several_files_and_folders_come_one_after_the_other(tmp_path: Path) -> None:
    last = _write(tmp_path / "b" / "rows.json")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "2.jsonl").write_text('{"question": "second"}\n')
    (tmp_path / "a" / "10.csv").write_text("question\nfirst\n")
    (tmp_path / "a" / "deep").mkdir()
    (tmp_path / "a" / "deep" / "x.jsonl").write_text('{"question": "third"}\n')
    (tmp_path / "a" / ".hidden.jsonl").write_text("not looked at")
    (tmp_path / "a" / "README.md").write_text("not looked at")
    folder = open_dataset(DatasetSettings(path=tmp_path / "a"))
    assert _questions(folder) == ["first", "second", "third"]
    both = open_dataset(DatasetSettings(path=(tmp_path / "a", last), limit=4))
    assert _questions(both) == ["first", "second", "third", "a"]


@pytest.mark.parametrize("kind", ["json", "jsonl", "parquet"])
def test_streamed_files_are_read_anew_each_epoch(tmp_path: Path, kind: str) -> None:
    path = _write(tmp_path / f"rows.{kind}")
    settings = DatasetSettings(path=path, streaming=True, columns={"prompt": "question"})
    tasks = Tasks(open_dataset(settings))
    tasks.check(needed=("prompt",))
    assert tasks.length is None
    for epoch in (1, 2):
        assert [row.task.item["prompt"] for row in tasks.epoch(epoch)] == ["a", "b"]
    assert [row.row for row in tasks.epoch(1, 1)] == [1]


def test_streamed_rows_are_read_as_they_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "a"}\nbroken\n')
    rows = iter(open_dataset(DatasetSettings(path=path, streaming=True)))
    assert next(rows) == {"question": "a"}
    with pytest.raises(FieldError, match=r"rows\.jsonl, line 2"):
        next(rows)


def test_a_name_is_what_load_dataset_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(*given: Any, **named: Any) -> datasets.Dataset:
        asked.append((given, named))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    settings = DatasetSettings(
        name="owner/tasks",
        config="easy",
        split="test[:10]",
        revision="v2",
        streaming=True,
        columns={"prompt": "question"},
        limit=1,
    )
    assert [row["prompt"] for row in open_dataset(settings)] == ["a"]
    open_dataset(DatasetSettings(name="owner/tasks"))
    assert asked == [
        (("owner/tasks", "easy"), {"split": "test[:10]", "revision": "v2", "streaming": True}),
        (("owner/tasks", None), {"split": "train", "revision": None, "streaming": False}),
    ]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_name_can_be_a_folder_that_load_dataset_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    _write(tmp_path / "tasks" / "test.jsonl")
    settings = DatasetSettings(name=str(tmp_path / "tasks"), split="test", streaming=streaming)
    assert list(open_dataset(settings)) == ROWS


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"dataset\.path.*a folder with files that end in .json"):
        open_dataset(DatasetSettings(path=tmp_path))


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


BOTH = {"question": "q", "prompt": "old"}


@pytest.mark.parametrize("row", [BOTH, dict(reversed(BOTH.items()))])
def test_a_new_name_that_another_column_has_is_refused(tmp_path: Path, row: dict[str, str]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    datasets.Dataset.from_list([row]).save_to_disk(str(tmp_path / "saved"))
    hides = r"dataset\.columns.*: got 'prompt' for 'question', beside a column 'prompt', wanted"
    for source in (path, tmp_path / "saved"):
        for streaming in (False, True):
            settings = DatasetSettings(
                path=source, streaming=streaming, columns={"prompt": "question"}
            )
            with pytest.raises(FieldError, match=hides):
                list(open_dataset(settings))


@pytest.mark.parametrize("row", [BOTH, dict(reversed(BOTH.items()))])
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"prompt": "question", "hint": "prompt"}, {"prompt": "q", "hint": "old"}),
        ({"hint": "prompt", "prompt": "question"}, {"prompt": "q", "hint": "old"}),
        ({"prompt": "question", "question": "prompt"}, {"prompt": "q", "question": "old"}),
        ({"prompt": "prompt"}, BOTH),
    ],
)
def test_a_new_name_is_free_where_its_column_is_renamed_too(
    tmp_path: Path, row: dict[str, str], columns: dict[str, str], expected: dict[str, str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    datasets.Dataset.from_list([row]).save_to_disk(str(tmp_path / "saved"))
    for source in (path, tmp_path / "saved"):
        for streaming in (False, True):
            settings = DatasetSettings(path=source, streaming=streaming, columns=columns)
            assert list(open_dataset(settings)) == [expected]


def test_a_column_has_one_new_name(tmp_path: Path) -> None:
    path = _write(tmp_path / "rows.jsonl")
    with pytest.raises(FieldError, match="several new names for 'question', wanted one"):
        open_dataset(DatasetSettings(path=path, columns={"prompt": "question", "q": "question"}))


@pytest.mark.parametrize("kind", ["json", "jsonl", "csv"])
def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path, kind: str) -> None:
    texts = {"json": '[{"prompt": "a"}]', "jsonl": '{"prompt": "a"}\n', "csv": "prompt\na\n"}
    path = tmp_path / f"rows.{kind}"
    path.write_text(texts[kind], encoding="utf-8-sig")
    assert open_dataset(DatasetSettings(path=path)) == [{"prompt": "a"}]


@pytest.mark.parametrize("kind", ["json", "jsonl", "csv"])
def test_a_file_that_is_not_utf8_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"rows.{kind}"
    path.write_bytes('[{"prompt": "caf\u00e9"}]'.encode("latin-1"))
    with pytest.raises(
        FieldError, match=rf"rows\.{kind}, which is not UTF-8: byte 0xe9.*wanted a file in UTF-8"
    ):
        open_dataset(DatasetSettings(path=path))


@pytest.mark.parametrize("left", [0, 20, -20])
def test_a_damaged_parquet_file_is_named(tmp_path: Path, left: int) -> None:
    path = _write(tmp_path / "rows.parquet")
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(FieldError, match=r"rows\.parquet: .*wanted a Parquet file that is whole"):
        open_dataset(DatasetSettings(path=path))


def test_a_damaged_page_of_a_parquet_file_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "rows.parquet")
    data = path.read_bytes()
    path.write_bytes(data[:4] + b"\xff" * 40 + data[44:])
    with pytest.raises(FieldError, match=r"rows\.parquet: "):
        open_dataset(DatasetSettings(path=path))


def test_a_field_of_a_csv_file_may_be_long(tmp_path: Path) -> None:
    """The limit of Python's csv is 131072 characters."""
    limit = csv.field_size_limit(131_072)
    path = tmp_path / "rows.csv"
    path.write_text(f"prompt,answer\n{'a' * 200_000},b\n")
    try:
        (row,) = open_dataset(DatasetSettings(path=path))
    finally:
        csv.field_size_limit(limit)
    assert (len(row["prompt"]), row["answer"]) == (200_000, "b")


def test_a_quote_that_is_never_closed_is_named(tmp_path: Path) -> None:
    """It would otherwise make one field of every row that follows."""
    path = tmp_path / "rows.csv"
    path.write_text('prompt\nfirst\n"second\nthird\n')
    message = r"rows\.csv, the row from line 3 on: .*wanted CSV: a text in quotes ends"
    with pytest.raises(FieldError, match=message):
        open_dataset(DatasetSettings(path=path))
