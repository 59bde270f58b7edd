"""Which rollout batches are under way when, and what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from antiphon.learner.data.tasks import Row
from antiphon.learner.rollout.rollout import Grown
from antiphon.learner.run.pipeline import Pipeline, RolloutBatch


@dataclass
class Growing:
    """Grows batches once it is told to; a batch goes by its epoch."""

    read: list[int] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    held: dict[int, asyncio.Event] = field(default_factory=dict)
    failing: set[int] = field(default_factory=set)

    def batches(self, count: int) -> Iterator[RolloutBatch]:
        for number in range(1, count + 1):
            self.read.append(number)
            yield RolloutBatch(number, [], end_of_epoch=True)

    async def grow(self, number: int, rows: Sequence[Row]) -> Grown:
        self.begun.append(number)
        try:
            if number in self.held:
                await self.held[number].wait()
        except asyncio.CancelledError:
            self.dropped.append(number)
            raise
        if number in self.failing:
            raise ValueError(f"batch {number}")
        return Grown(roots=[], skipped=[(number, "")])


async def inline(function: Callable[[], Any], what: str) -> Any:
    return function()


def pipeline(growing: Growing, count: int, ahead: int) -> Pipeline:
    return Pipeline(growing.batches(count), growing.grow, ahead=ahead, on_main_thread=inline)


@pytest.mark.parametrize(
    ("ahead", "begun"),
    [(0, [1, 2, 3, 4]), (1, [2, 3, 4, 4]), (2, [3, 4, 4, 4]), (9, [4, 4, 4, 4])],
)
async def test_each_batch_comes_in_turn_with_so_many_begun_ahead(
    ahead: int, begun: list[int]
) -> None:
    """The last batch that is begun when the first, second, ... is asked for."""
    growing = Growing()
    last: list[int] = []
    async with pipeline(growing, 4, ahead) as batches:
        for number in range(1, 5):
            batch = await batches.peek()
            assert batch is not None
            assert batch.epoch == number
            assert (await batches.next()).skipped == [(number, "")]
            await asyncio.sleep(0)
            last.append(max(growing.begun))
        assert await batches.peek() is None
    assert last == begun
    assert growing.begun == [1, 2, 3, 4]


async def test_nothing_is_begun_or_read_ahead_of_need_at_staleness_0() -> None:
    growing = Growing()
    async with pipeline(growing, 4, 0) as batches:
        await batches.peek()
        assert (growing.read, growing.begun) == ([1], [])
        await batches.next()
        assert (growing.read, growing.begun) == ([1], [1])


async def test_batches_that_overtake_are_given_in_turn() -> None:
    growing = Growing(held={1: asyncio.Event()})
    async with pipeline(growing, 2, 1) as batches:
        first = asyncio.create_task(batches.next())
        while growing.begun != [1, 2]:
            await asyncio.sleep(0)
        assert not first.done()
        growing.held[1].set()
        assert (await first).skipped == [(1, "")]
        assert (await batches.next()).skipped == [(2, "")]


async def test_what_is_under_way_at_the_end_is_dropped() -> None:
    growing = Growing(held={2: asyncio.Event(), 3: asyncio.Event()})
    async with pipeline(growing, 3, 2) as batches:
        await batches.next()
        await asyncio.sleep(0)
    assert growing.dropped == [2, 3]


async def test_a_batch_that_fails_fails_when_its_turn_comes() -> None:
    growing = Growing(failing={2})
    async with pipeline(growing, 3, 2) as batches:
        await batches.next()
        with pytest.raises(ValueError, match="batch 2"):
            await batches.next()
