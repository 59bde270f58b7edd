"""Places for requests that arrive: who gets the next one, and what becomes of it."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.services.common.places import Places, PlaceWantedError

LONG = 600.0


class Callers:
    """Calls that hold a place until they are told to go; `got` are those with one, in order."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self.got: list[str] = []
        self._go: dict[str, asyncio.Event] = {}

    async def call(self, name: str) -> None:
        """One call of the caller that its first letter names; the last one counts its calls."""
        go = self._go[name] = asyncio.Event()
        async with self._places.place(name[0], name[:-1], LONG):
            self.got.append(name)
            await go.wait()

    def start(self, *names: str) -> dict[str, asyncio.Task[None]]:
        return {name: asyncio.ensure_future(self.call(name)) for name in names}

    def release(self, name: str) -> None:
        self._go[name].set()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_callers_take_turns_however_many_calls_one_has() -> None:
    callers = Callers(Places(1, LONG))
    tasks = callers.start("a1", "a2", "a3", "b1", "c1", "b2")
    for _ in tasks:
        await settled()
        callers.release(callers.got[-1])
    await asyncio.gather(*tasks.values())
    assert callers.got == ["a1", "a2", "b1", "c1", "a3", "b2"]


async def test_no_place_is_lost_with_a_call_that_is_gone() -> None:
    """While it waits, in the moment in which it is given one, and while it holds one."""
    places = Places(1, LONG)
    callers = Callers(places)
    async with places.place("a", "a", LONG):
        tasks = callers.start("b1", "c1", "d1")
        await settled()
        tasks["b1"].cancel()
    tasks["c1"].cancel()  # It has been given the place and has not run yet.
    await settled()
    assert callers.got == ["d1"]
    tasks["d1"].cancel()
    await settled()
    async with asyncio.timeout(60), places.place("e", "e", LONG):
        pass


async def test_who_waits_gets_the_place_of_the_one_who_has_had_it_longest() -> None:
    callers = Callers(Places(2, 0.05))
    tasks = callers.start("a1", "b1", "c1")
    with pytest.raises(PlaceWantedError):
        await asyncio.wait_for(tasks["a1"], 60)
    await settled()
    assert callers.got == ["a1", "b1", "c1"]
    assert not tasks["b1"].done()
    for task in tasks.values():
        task.cancel()


async def test_a_place_that_nobody_wants_may_be_held_for_its_own_time() -> None:
    places = Places(1, 0.001)
    with pytest.raises(TimeoutError):
        async with places.place("a", "a", 0.05):
            await asyncio.Event().wait()
