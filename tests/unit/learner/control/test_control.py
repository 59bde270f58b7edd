"""Pause, resume and stop act between rollout batches; a stop drops the rollout under way."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.learner.control.control import RunControl, StoppedError


async def test_a_paused_run_waits_until_it_is_resumed() -> None:
    control = RunControl()
    control.pause()
    waiting = asyncio.create_task(control.wait_while_paused())
    await asyncio.sleep(0)
    assert control.pause_asked
    assert control.waits
    assert not waiting.done()
    control.resume()
    async with asyncio.timeout(5):
        await waiting
    assert not control.waits


async def test_a_paused_run_that_is_asked_for_something_is_at_work() -> None:
    control = RunControl()
    control.pause()
    control.evaluations.ask(None)
    async with asyncio.timeout(5):
        await control.wait_while_paused()
    assert control.pause_asked
    assert not control.waits


async def test_a_stop_wakes_a_paused_run_and_cannot_be_paused() -> None:
    control = RunControl()
    control.pause()
    control.stop("enough")
    control.pause()
    async with asyncio.timeout(5):
        await control.wait_while_paused()
    assert control.stop_reason == "enough"


async def test_a_stop_drops_the_work_under_way() -> None:
    control = RunControl()
    dropped = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            dropped.set()

    running = asyncio.create_task(control.unless_stopped(work()))
    await asyncio.sleep(0)
    control.stop("SIGTERM")
    async with asyncio.timeout(5):
        with pytest.raises(StoppedError, match="SIGTERM"):
            await running
    assert dropped.is_set()


async def test_work_that_ends_gives_its_result_and_its_error() -> None:
    control = RunControl()

    async def answer() -> int:
        return 42

    async def fail() -> None:
        raise KeyError("mine")

    assert await control.unless_stopped(answer()) == 42
    with pytest.raises(KeyError, match="mine"):
        await control.unless_stopped(fail())
