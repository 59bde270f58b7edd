"""S5: a run that does not get on ends with an error that says what it was waiting for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from antiphon.clients.waiting import progressed, waiting_for
from antiphon.learner.run.watchdog import NoProgressError, Watchdog

LIMIT = 0.2
LOOK = LIMIT / 10
LOOKS = 30
"""More than a standstill takes, which is ten."""


class Clock:
    """Tells the time; `act` is called at each of the first looks, and those are counted."""

    def __init__(self, act: Callable[[int], None] = lambda look: None) -> None:
        self._act = act
        self._calls = 0
        self.seconds = 0.0

    @property
    def looks(self) -> int:
        return (self._calls - 1) // 2

    def __call__(self) -> float:
        self._calls += 1
        if self._calls % 2 == 0:  # Each look asks twice.
            self.seconds += LOOK
            if self.looks < LOOKS:
                self._act(self.looks)
        return self.seconds


async def standstill(
    clock: Clock | None = None, *, paused: Callable[[], bool] = lambda: False
) -> str:
    """What the watchdog says in the end."""
    options = {} if clock is None else {"now": clock}
    dog = Watchdog(LIMIT, doing=lambda: "working on score of epoch 2", paused=paused, **options)
    async with dog.watching():
        with pytest.raises(NoProgressError) as caught:
            await asyncio.wait_for(dog.stuck(), 60)
    dog.release()
    return str(caught.value)


async def test_what_stands_still_is_named_with_stage_service_and_call() -> None:
    with waiting_for("Score at 127.0.0.1:50061"), waiting_for("Generate at agent-1:50051"):
        said = await standstill()
    assert said.startswith(
        "the run made no progress for 0.2 s (progress_timeout) while working on score of epoch 2; "
        "it was waiting for: Score at 127.0.0.1:50061 (for "
    )
    assert "Generate at agent-1:50051" in said


async def test_whoever_gets_on_is_left_alone() -> None:
    clock = Clock(lambda look: progressed())
    await standstill(clock)
    assert clock.looks >= LOOKS


async def test_a_pause_is_no_standstill() -> None:
    clock = Clock()
    await standstill(clock, paused=lambda: clock.looks < LOOKS)
    assert clock.looks >= LOOKS


async def test_time_in_which_the_process_itself_was_stopped_does_not_count() -> None:
    clock = Clock()

    def stopped_once(look: int) -> None:
        if look == 0:
            clock.seconds += 1e6
        if look > 1:
            progressed()

    clock._act = stopped_once
    await standstill(clock)
    assert clock.looks >= LOOKS


async def test_a_run_that_does_not_end_even_then_has_its_process_ended() -> None:
    said: list[str] = []
    hangs = threading.Event()

    def end_process(message: str) -> None:
        said.append(message)
        hangs.set()

    dog = Watchdog(
        LIMIT,
        doing=lambda: "",
        paused=lambda: False,
        end_seconds=LOOK,
        end_process=end_process,
    )
    async with dog.watching():
        with waiting_for("the update of agent 1"):
            await asyncio.to_thread(hangs.wait, 60)
    assert "while starting; it was waiting for: the update of agent 1" in said[0]
    assert "did not end within 0.02 s either" in said[0]


def test_the_end_of_the_event_loop_is_watched_until_the_run_lets_go() -> None:
    """A loop that ends waits for every thread it has started, one that nobody awaits too."""
    hangs = threading.Event()
    dog = Watchdog(
        LIMIT,
        doing=lambda: "",
        paused=lambda: False,
        end_seconds=LOOK,
        end_process=lambda message: hangs.set(),
    )

    async def run() -> None:
        async with dog.watching():
            asyncio.get_running_loop().run_in_executor(None, hangs.wait, 60)
            await dog.stuck()

    with pytest.raises(NoProgressError):
        asyncio.run(run())
    assert hangs.is_set()
    dog.release()


async def test_without_a_limit_nobody_watches() -> None:
    threads = threading.active_count()
    dog = Watchdog(None, doing=lambda: "", paused=lambda: False)
    async with dog.watching():
        assert threading.active_count() == threads
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(dog.stuck(), 0.01)
