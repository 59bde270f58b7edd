"""How joint actions are put into calls, and how answers find them again."""

import asyncio

import pytest

from antiphon.clients.batches import all_or_first_error, by_id, even, split, tasks_by_id
from antiphon.clients.errors import ContractError
from antiphon.clients.types import FieldError, Task


def test_batches_keep_order_number_and_size() -> None:
    assert split("abcde", [1] * 5, most=2, most_bytes=100) == [["a", "b"], ["c", "d"], ["e"]]
    assert split("abcde", [1] * 5, most=0, most_bytes=100) == [list("abcde")]
    assert split("abcd", [4, 4, 4, 4], most=0, most_bytes=8) == [["a", "b"], ["c", "d"]]
    assert split("abc", [1, 99, 1], most=0, most_bytes=8) == [["a"], ["b"], ["c"]]
    assert split("", [], most=3, most_bytes=8) == []


def test_batches_are_about_equal() -> None:
    assert [even(10, 4), even(8, 4), even(9, 8), even(3, 8), even(5, 0)] == [4, 4, 5, 3, 0]


@pytest.mark.parametrize(
    ("answers", "named"),
    [
        (["a", "c"], "no answer for 'b'"),
        (["a", "b", "c", "z"], "unknown 'z'"),
        (["a", "b", "b", "c"], "more than one answer for 'b'"),
        (["a", "a", "z"], "'b', 'c'"),
        ([], "'a', 'b', 'c'"),
    ],
)
def test_unknown_missing_and_doubled_ids_are_named(answers: list[str], named: str) -> None:
    """S9: an answer is applied by id, or not at all."""
    with pytest.raises(ContractError) as error:
        by_id(["a", "b", "c"], answers, str, address="host:1", rpc="Score")
    assert named in str(error.value)
    assert "host:1" in str(error.value)


def test_answers_come_in_the_order_asked() -> None:
    """S9: applied by id, not by position."""
    answers = by_id(["a", "b"], [("b", 2), ("a", 1)], lambda x: x[0], address="h:1", rpc="R")
    assert answers == [("a", 1), ("b", 2)]


def test_a_task_that_is_named_but_not_given_is_an_error() -> None:
    task = Task("t", {})
    assert tasks_by_id([task, task], ["t"]) == {"t": task}
    with pytest.raises(FieldError, match="'u'"):
        tasks_by_id([task], ["t", "u"])
    with pytest.raises(FieldError, match="'t'"):
        tasks_by_id([task, Task("t", {"other": 1})], ["t"])


async def test_the_first_error_is_raised_as_it_is_and_the_rest_is_cancelled() -> None:
    """S8: the root error is what the user sees, and no call goes on behind it."""
    cancelled = asyncio.Event()
    waiting = asyncio.Event()

    async def fails() -> int:
        await waiting.wait()
        raise ValueError("root")

    async def waits() -> int:
        waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return 0

    with pytest.raises(ValueError, match="root"):
        await all_or_first_error([fails(), waits()])
    assert cancelled.is_set()
    assert await all_or_first_error([asyncio.sleep(0, 1), asyncio.sleep(0, 2)]) == [1, 2]
