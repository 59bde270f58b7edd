"""Watchers see every event once, in order, from where they left off."""

from __future__ import annotations

import asyncio

from antiphon.clients.types import Note, RunEvent
from antiphon.learner.control.events import EventLog


async def followed(log: EventLog, after: int) -> list[RunEvent]:
    return [event async for event in log.follow(after)]


def texts(events: list[RunEvent]) -> list[str]:
    return [event.event.text for event in events if isinstance(event.event, Note)]


async def test_events_are_numbered_from_1_and_follow_until_the_log_is_closed() -> None:
    log = EventLog(now=lambda: 12.5)
    log.append(Note("a"))
    watching = asyncio.create_task(followed(log, 0))
    await asyncio.sleep(0)
    log.append(Note("b"))
    log.close()
    async with asyncio.timeout(5):
        events = await watching
    assert [(e.sequence, e.time, e.missed) for e in events] == [(1, 12.5, 0), (2, 12.5, 0)]
    assert texts(events) == ["a", "b"]


async def test_a_watcher_goes_on_after_the_last_event_that_it_saw() -> None:
    log = EventLog()
    for text in "abc":
        log.append(Note(text))
    log.close()
    assert texts(await followed(log, 2)) == ["c"]


async def test_events_that_are_no_longer_kept_are_counted() -> None:
    log = EventLog(kept=2)
    for text in "abcde":
        log.append(Note(text))
    log.close()
    events = await followed(log, 1)
    assert [(e.sequence, e.missed) for e in events] == [(4, 2), (5, 0)]


async def test_a_number_of_an_earlier_process_gives_everything_that_is_kept() -> None:
    log = EventLog()
    log.append(Note("a"))
    log.close()
    assert texts(await followed(log, 900)) == ["a"]


async def test_events_told_while_a_slow_watcher_looks_away_arrive_all() -> None:
    log = EventLog()
    seen = []
    log.append(Note("0"))
    async with asyncio.timeout(5):
        async for event in log.follow(0):
            seen.append(event.sequence)
            if event.sequence < 4:
                log.append(Note("x"))
            else:
                log.close()
    assert seen == [1, 2, 3, 4]
