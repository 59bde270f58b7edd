"""S10: liveness is the age of the engine's last step while it has work."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.services.generation.liveness import live_health

LIMIT = 5.0


class Clock:
    """An engine whose step ages as the watch looks, look by look."""

    def __init__(self, ages: list[float | Exception]) -> None:
        self._ages = iter(ages)
        self._age: float | Exception = 0.0
        self.looked_at_all = asyncio.Event()
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        try:
            self._age = next(self._ages)
        except StopIteration:
            self.looked_at_all.set()
            await asyncio.Event().wait()

    @property
    def seconds_since_step(self) -> float:
        if isinstance(self._age, Exception):
            raise self._age
        return self._age


async def told(ages: list[float | Exception], limit: float | None = LIMIT) -> list[bool]:
    """What health was told while the ages were seen one after the other."""
    said: list[bool] = []

    async def set_serving(serving: bool) -> None:
        said.append(serving)

    engine = Clock(ages)
    async with live_health(engine, set_serving, limit_seconds=limit, sleep=engine.sleep):
        if limit is not None:
            await engine.looked_at_all.wait()
    assert all(pause <= LIMIT / 10 for pause in engine.pauses)
    return said


async def test_an_engine_that_hangs_is_not_serving_and_serves_again_with_its_next_step() -> None:
    assert await told([1.0, 4.9, 5.1, 6.0, 60.0, 0.1, 0.2]) == [False, True]


async def test_busy_and_idle_engines_are_left_alone() -> None:
    """A step that takes up to the limit is a step; an idle engine has age 0."""
    assert await told([4.9, 0.0, 5.0, 3.0, 0.0, 0.0, 0.0]) == []


async def test_without_a_limit_nothing_is_told() -> None:
    assert await told([1e9], limit=None) == []


async def test_an_engine_that_cannot_be_asked_is_not_serving_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failure = RuntimeError("the engine's process is gone")
    assert await told([1.0, failure, failure, 0.5, 0.5]) == [False, True]
    assert caplog.text.count("RuntimeError: the engine's process is gone") == 1
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "WARNING"]
