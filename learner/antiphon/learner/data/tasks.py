"""Datasets: whatever holds rows becomes `Task`s, checked before anything is trained.

A row goes by its number in the dataset, whatever the order of an epoch: its seeds and its task's
id are the same wherever it comes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from antiphon.clients.items import encode_item
from antiphon.clients.types import FieldError, Task
from antiphon.learner.data.row_order import RowOrder

CHECK_ALL_UP_TO = 10_000
"""Rows of a dataset that are all checked at start; of a longer one, `SAMPLED_ROWS` are."""
SAMPLED_ROWS = 100


@dataclass(frozen=True)
class Row:
    """A row of the dataset, counted from 0, as a task."""

    row: int
    task: Task


class Tasks:
    """The rows of a dataset, once per epoch.

    Args:
        dataset: A `datasets.Dataset` or `IterableDataset`, a sequence of mappings, or anything
            that can be iterated anew each epoch and gives mappings. One with `set_epoch` (which an
            `IterableDataset` shuffles by) is told the epoch, counted from 0, before each.
        name: What errors call it, for example ``train_dataset``.
        order: Shuffles the rows anew for each epoch; None keeps the dataset's order.

    Raises:
        FieldError: It is none of these, or it is empty.
    """

    def __init__(
        self, dataset: Any, *, name: str = "train_dataset", order: RowOrder | None = None
    ) -> None:
        self.name = name
        self._order = order
        self._dataset = dataset
        self._fingerprint: str | None = None
        if dataset is None or isinstance(dataset, (str, bytes, Mapping)):
            raise FieldError(name, _kind(dataset), "a dataset: rows that are mappings")
        if hasattr(dataset, "__next__"):
            raise FieldError(
                name,
                f"a one-time iterator ({_kind(dataset)})",
                "something that every epoch can iterate anew, such as a list of its rows",
            )
        self._by_index = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if not self._by_index and not isinstance(dataset, Iterable):
            raise FieldError(name, _kind(dataset), "a dataset: rows that are mappings")
        if self._by_index and len(dataset) == 0:
            raise FieldError(name, "no rows", "one row at least")

    @property
    def length(self) -> int | None:
        """Rows per epoch, None where the dataset does not know."""
        return len(self._dataset) if self._by_index else None

    def columns(self) -> tuple[str, ...]:
        """Names of the columns: those that the dataset states, else those of its first row.

        Raises:
            FieldError: It has no rows, or they are no mappings.
        """
        stated = getattr(self._dataset, "column_names", None)
        if isinstance(stated, Sequence) and not isinstance(stated, str):
            return tuple(str(column) for column in stated)
        return tuple(str(column) for column in self._first_item())

    def check(self, *, needed: Sequence[str] = ()) -> None:
        """Check columns and rows before the run starts.

        All rows of a dataset of known length up to `CHECK_ALL_UP_TO` are checked; of a longer one
        `SAMPLED_ROWS` spread over it, of one without a length the first. The others are checked as
        they arrive.

        Args:
            needed: Columns that must be there.

        Raises:
            FieldError: Names the missing column and those that are there, or the row and column
                that cannot be carried to a service as it is.
        """
        columns = self.columns()
        for column in needed:
            if column not in columns:
                raise FieldError(
                    self.name,
                    f"the columns {', '.join(columns) or '(none)'}",
                    f"a column {column!r}; rename one, or give formatters that write the prompts",
                )
        for row in self._rows_to_check():
            item = self._item(row)
            self._task(row, item)
            for column in needed:
                if column not in item:
                    raise FieldError(
                        f"{self.name}[{row}]",
                        f"the columns {', '.join(item) or '(none)'}",
                        f"a column {column!r} in every row",
                    )

    def fingerprint(self) -> str | None:
        """A hash of length and rows, None where the length is not known.

        Of a long dataset the rows that `check` looks at are hashed.
        """
        if self.length is None or self._fingerprint is not None:
            return self._fingerprint
        digest = hashlib.blake2b(str(self.length).encode(), digest_size=16)
        for row in self._rows_to_check():
            encoded = encode_item(self._item(row), field=f"{self.name}[{row}]")
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
        self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def epoch(self, epoch: int = 1, start: int = 0) -> Iterator[Row]:
        """Iterate over the rows of an epoch, without the first `start` of its order.

        The order is the same whenever the epoch is iterated. Of a dataset without a length the
        rows that are left out are read.

        Args:
            epoch: Counted from 1.
            start: Rows that are left out.

        Raises:
            FieldError: A row is no mapping or holds what cannot be carried as it is.
        """
        if self._by_index:
            rows: Sequence[int] = range(len(self._dataset))
            if self._order is not None:
                rows = self._order.permutation(len(rows), epoch)
            for row in rows[start:]:
                yield Row(row, self._task(row, self._item(row)))
            return
        if callable(set_epoch := getattr(self._dataset, "set_epoch", None)):
            set_epoch(epoch - 1)
        numbered: Iterable[tuple[int, Any]] = enumerate(self._dataset)
        if self._order is not None:
            numbered = self._order.shuffled(numbered, epoch)
        row = start - 1
        for row, item in islice(numbered, start, None):
            yield Row(row, self._task(row, self._mapping(row, item)))
        if row < 0:
            raise FieldError(self.name, "no rows", "one row at least")

    def _rows_to_check(self) -> Iterable[int]:
        length = self.length
        if length is None:
            return (0,)
        if length <= CHECK_ALL_UP_TO:
            return range(length)
        return sorted({i * (length - 1) // (SAMPLED_ROWS - 1) for i in range(SAMPLED_ROWS)})

    def _first_item(self) -> Mapping[str, Any]:
        if self._by_index:
            return self._item(0)
        for item in self._dataset:
            return self._mapping(0, item)
        raise FieldError(self.name, "no rows", "one row at least")

    def _item(self, row: int) -> Mapping[str, Any]:
        if not self._by_index:
            return self._mapping(row, self._first_item())
        try:
            item = self._dataset[row]
        except (KeyError, TypeError) as error:
            raise FieldError(
                self.name,
                f"{_kind(self._dataset)}, which has no row {row} ({error!r})",
                "rows by number that are mappings; datasets.Dataset.from_pandas makes them of a "
                "DataFrame",
            ) from error
        return self._mapping(row, item)

    def _mapping(self, row: int, item: object) -> Mapping[str, Any]:
        if not isinstance(item, Mapping):
            raise FieldError(f"{self.name}[{row}]", _kind(item), "a mapping of columns to values")
        return item

    def _task(self, row: int, item: Mapping[str, Any]) -> Task:
        encode_item(item, field=f"{self.name}[{row}]")
        return Task(id=f"row-{row}", item=dict(item))


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__
