"""What a process waits for, and whether it gets on."""

from __future__ import annotations

import grpc

from antiphon.clients.errors import CallError
from antiphon.clients.retry import Attempts, RetryPolicy
from antiphon.clients.waiting import progress, progressed, waiting_for, waits


def named() -> list[str]:
    return [wait.what for wait in waits()]


def test_what_is_waited_for_is_named_the_longest_first_and_only_while_it_is() -> None:
    with waiting_for("Score at a:1"):
        with waiting_for("Generate at b:2"):
            assert named() == ["Score at a:1", "Generate at b:2"]
        assert named() == ["Score at a:1"]
    assert named() == []


def test_progress_grows_with_every_step() -> None:
    before = progress()
    assert progress() == before
    progressed()
    assert progress() > before


async def test_a_call_between_two_attempts_is_named_with_its_last_failure() -> None:
    """S5: a service that is away is found by name, though no call is under way."""
    seen: list[str] = []

    async def sleep(seconds: float) -> None:
        seen.extend(named())

    attempts = Attempts(RetryPolicy(), sleep)
    away = CallError(grpc.StatusCode.UNAVAILABLE, "no route", address="a:1", rpc="Score")
    await attempts.pause_after(away)
    before = progress()
    await attempts.pause_after(away)
    assert progress() == before
    assert seen == [
        "Score at a:1 to be tried again, which failed 1 time, last with UNAVAILABLE: no route",
        "Score at a:1 to be tried again, which failed 2 times, last with UNAVAILABLE: no route",
    ]
