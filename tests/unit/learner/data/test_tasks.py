"""Datasets become tasks, checked at start."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from typing import Any

import datasets
import pytest

from antiphon.clients.types import FieldError
from antiphon.learner.data import tasks as data
from antiphon.learner.data.row_order import RowOrder
from antiphon.learner.data.tasks import Tasks

ROWS = [{"prompt": f"prompt {i}", "answer": i} for i in range(4)]


def _iterable() -> datasets.IterableDataset:
    return datasets.IterableDataset.from_generator(lambda: iter(ROWS))


@pytest.mark.parametrize(
    "dataset",
    [ROWS, tuple(ROWS), datasets.Dataset.from_list(ROWS), _iterable()],
    ids=["list", "tuple", "Dataset", "IterableDataset"],
)
def test_every_kind_of_dataset_gives_its_rows_each_epoch(dataset: Any) -> None:
    """L22: an IterableDataset works as the others do."""
    tasks = Tasks(dataset)
    tasks.check(needed=("prompt",))
    for _ in range(2):
        rows = list(tasks.epoch())
        assert [row.row for row in rows] == [0, 1, 2, 3]
        assert [row.task.item for row in rows] == ROWS
        assert len({row.task.id for row in rows}) == 4


@pytest.mark.parametrize("dataset", [ROWS, _iterable()], ids=["list", "IterableDataset"])
def test_an_epoch_can_start_at_a_row(dataset: Any) -> None:
    assert [row.task.item["answer"] for row in Tasks(dataset).epoch(1, 2)] == [2, 3]
    assert [row.row for row in Tasks(dataset).epoch(1, 2)] == [2, 3]


def test_length_is_known_where_the_dataset_knows_it() -> None:
    assert Tasks(datasets.Dataset.from_list(ROWS)).length == 4
    assert Tasks(_iterable()).length is None


@pytest.mark.parametrize(
    "dataset",
    [
        [{"question": "q", "answer": 1}],
        datasets.Dataset.from_dict({"question": ["q"], "answer": [1]}),
        datasets.IterableDataset.from_generator(lambda: iter([{"question": "q", "answer": 1}])),
    ],
    ids=["list", "Dataset", "IterableDataset"],
)
def test_a_missing_prompt_column_fails_at_start_and_lists_the_columns(dataset: Any) -> None:
    """L22: without a "prompt" column the run fails at start and lists the columns."""
    with pytest.raises(FieldError, match=r"columns question, answer.*column 'prompt'"):
        Tasks(dataset).check(needed=("prompt",))


def test_formatters_need_no_prompt_column() -> None:
    Tasks([{"question": "q"}]).check(needed=())


def test_a_row_without_the_column_is_named() -> None:
    with pytest.raises(FieldError, match=r"train_dataset\[1\].*columns question.*'prompt'"):
        Tasks([{"prompt": "a"}, {"question": "b"}]).check(needed=("prompt",))


@pytest.mark.parametrize(
    "value",
    [
        datetime.date(2026, 1, 1),
        b"bytes",
        math.nan,
        math.inf,
        {"nested": [1, {"when": datetime.datetime(2026, 1, 1)}]},
        {1: "a number as key"},
        {1, 2},
    ],
    ids=["date", "bytes", "nan", "inf", "nested", "key", "set"],
)
def test_a_value_that_would_be_changed_on_the_way_is_refused_at_start(value: Any) -> None:
    """U9: arrives equal, or refused at start naming the column."""
    rows = [{"prompt": "a", "extra": 1}, {"prompt": "b", "extra": value}]
    with pytest.raises(FieldError, match=r"train_dataset\[1\].*extra"):
        Tasks(rows).check()


def test_nested_values_none_and_big_numbers_are_kept() -> None:
    """U9: arrives equal."""
    item = {"prompt": "a", "deep": {"list": [None, True, 2**80, -0.5, "ü"]}, "none": None}
    tasks = Tasks([item])
    tasks.check(needed=("prompt",))
    assert next(tasks.epoch()).task.item == item


def test_a_bad_row_of_a_long_dataset_fails_when_it_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """U9: rows that were not looked at at start are checked on arrival."""
    monkeypatch.setattr(data, "CHECK_ALL_UP_TO", 10)
    monkeypatch.setattr(data, "SAMPLED_ROWS", 3)
    rows: list[dict[str, Any]] = [{"prompt": "a", "x": 1} for _ in range(21)]
    rows[11]["x"] = b"raw"
    tasks = Tasks(rows)
    tasks.check(needed=("prompt",))
    arrived = tasks.epoch()
    for _ in range(11):
        next(arrived)
    with pytest.raises(FieldError, match=r"train_dataset\[11\].*x"):
        next(arrived)


def test_first_middle_and_last_of_a_long_dataset_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data, "CHECK_ALL_UP_TO", 10)
    monkeypatch.setattr(data, "SAMPLED_ROWS", 3)
    for bad in (0, 10, 20):
        rows: list[dict[str, Any]] = [{"x": 1} for _ in range(21)]
        rows[bad]["x"] = b"raw"
        with pytest.raises(FieldError, match=rf"\[{bad}\]"):
            Tasks(rows).check()


def test_an_iterator_that_ends_after_one_epoch_is_refused() -> None:
    def generator() -> Iterator[dict[str, Any]]:
        yield from ROWS

    with pytest.raises(FieldError, match="one-time iterator"):
        Tasks(generator())


@pytest.mark.parametrize("dataset", [None, "data.jsonl", {"prompt": ["a"]}, 3, []])
def test_what_is_no_dataset_is_refused(dataset: Any) -> None:
    with pytest.raises(FieldError, match="train_dataset"):
        Tasks(dataset)


def test_rows_that_are_no_mappings_are_refused() -> None:
    with pytest.raises(FieldError, match=r"train_dataset\[0\]: got str, wanted a mapping"):
        Tasks(["a prompt"]).check()


def test_an_empty_iterable_dataset_is_refused() -> None:
    empty = datasets.IterableDataset.from_generator(lambda: iter([]))
    with pytest.raises(FieldError, match="no rows"):
        Tasks(empty).check()
    with pytest.raises(FieldError, match="no rows"):
        list(Tasks(empty).epoch())


@pytest.mark.parametrize("dataset", [ROWS * 3, _iterable()], ids=["list", "IterableDataset"])
def test_a_shuffled_epoch_is_the_same_again_and_skips_exactly(dataset: Any) -> None:
    def rows(epoch: int, start: int = 0) -> list[int]:
        tasks = Tasks(dataset, order=RowOrder(3, buffer_size=3))
        return [row.row for row in tasks.epoch(epoch, start)]

    whole = rows(2)
    assert sorted(whole) == list(range(len(whole)))
    assert whole != sorted(whole)
    assert rows(1) != whole
    assert [rows(2, start) for start in range(len(whole) + 1)] == [
        whole[start:] for start in range(len(whole) + 1)
    ]


@pytest.mark.parametrize("dataset", [ROWS, _iterable()], ids=["list", "IterableDataset"])
def test_a_row_keeps_its_number_wherever_it_comes(dataset: Any) -> None:
    for row in Tasks(dataset, order=RowOrder(3, buffer_size=3)).epoch(2):
        assert row.task.item == ROWS[row.row]
        assert row.task.id == f"row-{row.row}"


def test_a_stream_that_shuffles_itself_is_told_the_epoch() -> None:
    def orders() -> list[list[int]]:
        tasks = Tasks(_iterable().shuffle(seed=1, buffer_size=4))
        return [[row.task.item["answer"] for row in tasks.epoch(epoch)] for epoch in (1, 2, 1)]

    first, second, again = orders()
    assert first == again != second
    assert sorted(first) == sorted(second) == [0, 1, 2, 3]
    assert orders() == [first, second, again]


def test_a_fingerprint_tells_other_rows_and_is_the_same_whatever_holds_them() -> None:
    """S12: a resumed run trains on the rows that its checkpoint counts."""
    fingerprint = Tasks(ROWS).fingerprint()
    assert fingerprint == Tasks(datasets.Dataset.from_list(ROWS)).fingerprint()
    others = [ROWS[:3], [*ROWS[1:], ROWS[0]], [*ROWS[:3], {**ROWS[3], "answer": 3.0}]]
    assert len({fingerprint, *(Tasks(rows).fingerprint() for rows in others)}) == 4
    assert Tasks(_iterable()).fingerprint() is None
