"""Samples and swaps take turns."""

from __future__ import annotations

import asyncio

from antiphon.services.generation.engines.turns import Turns


async def test_nothing_is_sampled_during_a_swap_that_follows_another_at_once() -> None:
    """S4: a sample that waits for one swap is woken into the next, and waits for that one too."""
    turns = Turns()
    first, second, sampled = asyncio.Event(), asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    async def swap(until: asyncio.Event) -> None:
        async with turns.swapping():
            await until.wait()
            seen.append(turns.sampling_now)

    async def sample() -> None:
        async with turns.sampling():
            sampled.set()

    swaps = [asyncio.create_task(swap(first))]
    await asyncio.sleep(0)
    waiting = asyncio.create_task(sample())
    await asyncio.sleep(0)
    first.set()
    swaps.append(asyncio.create_task(swap(second)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert seen == [0]
    assert not sampled.is_set()
    second.set()
    await asyncio.gather(*swaps, waiting)
    assert seen == [0, 0]
    assert sampled.is_set()


async def test_a_swap_waits_for_what_is_being_sampled() -> None:
    turns = Turns()
    swapped = asyncio.Event()

    async def swap() -> None:
        async with turns.swapping():
            swapped.set()

    async with turns.sampling():
        swapping = asyncio.create_task(swap())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not swapped.is_set()
    await swapping
    assert swapped.is_set()
