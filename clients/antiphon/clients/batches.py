"""How joint actions are put into calls, and how answers find their joint actions."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from antiphon.clients.errors import ContractError
from antiphon.clients.types import FieldError, Task

T = TypeVar("T")
R = TypeVar("R")

CALLS_AT_ONCE = 16
"""Most calls under way to one service that names no limit of its own."""


def split(
    entries: Sequence[T], sizes: Sequence[int], *, most: int, most_bytes: int
) -> list[list[T]]:
    """Split `entries`, in order, into batches of at most `most` (0: no limit) and `most_bytes`.

    An entry that is larger than `most_bytes` by itself gets a batch of its own.
    """
    batches: list[list[T]] = []
    room = 0
    for entry, size in zip(entries, sizes, strict=True):
        if not batches or size > room or (most and len(batches[-1]) == most):
            batches.append([])
            room = most_bytes
        batches[-1].append(entry)
        room -= size
    return batches


def even(count: int, most: int) -> int:
    """The size of equal batches: 10 entries with at most 4 go as 4, 3, 3 rather than 4, 4, 2."""
    return math.ceil(count / math.ceil(count / most)) if most and count else most


def tasks_by_id(tasks: Iterable[Task], named: Iterable[str]) -> dict[str, Task]:
    """Tasks by id.

    Raises:
        FieldError: An id of `named` has no task, or two tasks share an id.
    """
    found: dict[str, Task] = {}
    for task in tasks:
        if found.setdefault(task.id, task) is not task:
            raise FieldError("tasks", f"two tasks with the id {task.id!r}", "each task once")
    missing = sorted(set(named) - found.keys())
    if missing:
        raise FieldError("tasks", f"none with the id {missing[0]!r}", "every task that is named")
    return found


def by_id(
    asked: Sequence[str],
    answers: Sequence[T],
    id_of: Callable[[T], str],
    *,
    address: str,
    rpc: str,
) -> list[T]:
    """The answers in the order asked.

    Raises:
        ContractError: An id is unknown, missing or doubled; they are named.
    """
    found: dict[str, T] = {}
    doubled: list[str] = []
    for answer in answers:
        if id_of(answer) in found:
            doubled.append(id_of(answer))
        found[id_of(answer)] = answer
    unknown = [identifier for identifier in found if identifier not in set(asked)]
    missing = [identifier for identifier in asked if identifier not in found]
    problems = [
        f"{what} {_names(ids)}"
        for what, ids in (
            ("no answer for", missing),
            ("more than one answer for", doubled),
            ("an answer for the unknown", unknown),
        )
        if ids
    ]
    if problems:
        raise ContractError(address, rpc, "; ".join(problems))
    return [found[identifier] for identifier in asked]


async def all_or_first_error(calls: Iterable[Awaitable[R]]) -> list[R]:
    """Await all; the first failure cancels the others and is raised as it is."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _names(ids: Sequence[str]) -> str:
    text = ", ".join(repr(identifier) for identifier in ids[:5])
    return text + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
