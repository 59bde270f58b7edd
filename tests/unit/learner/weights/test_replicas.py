"""An agent's replicas tell of every change, whoever waits for it."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from prometheus_client import REGISTRY

from antiphon.clients.errors import CallError
from antiphon.learner.weights.replicas import Absence, Replica, Replicas


async def test_a_change_before_the_waiting_task_began_is_not_missed() -> None:
    replicas = Replicas()
    waiting = asyncio.create_task(replicas.changed())
    replicas.tell()
    async with asyncio.timeout(10):
        assert await waiting is True


def away() -> tuple[Replicas, Replica, list[str], list[float]]:
    """An agent whose one service is away: its replicas, what the user is told, and a clock."""
    one = Replica("a:1", client=None)  # type: ignore[arg-type]
    said: list[str] = []
    clock = [0.0]
    replicas = Replicas([one], agent=3, patience=600.0, grow=False)
    replicas.absence = Absence(replicas, said.append, now=lambda: clock[0])
    replicas.leave_out(one, "it broke off")
    return replicas, one, said, clock


def test_an_agent_that_is_away_is_waited_for_and_the_user_is_told_when_it_lasts() -> None:
    replicas, one, said, clock = away()
    assert replicas.absence.seconds() == Absence.TOLD_AFTER
    clock[0] = 1.0
    assert replicas.absence.seconds() == Absence.TOLD_AFTER - 1
    assert said == []
    clock[0] = 5.0
    assert replicas.absence.seconds() == 595
    assert replicas.absence.seconds() == 595
    clock[0] = 130.0
    replicas.take_back(one)
    assert replicas.absence.seconds() is None
    assert said == [
        "waiting for agent 3, at a:1, for up to 600 s (replicas_timeout): it broke off",
        "agent 3 is asked again, after 130 s",
    ]


def test_each_absence_is_given_the_whole_patience() -> None:
    replicas, one, _, clock = away()
    replicas.absence.seconds()
    clock[0] = 590.0
    replicas.take_back(one)
    replicas.leave_out(one, "again")
    clock[0] = 3600.0
    assert replicas.absence.seconds() == Absence.TOLD_AFTER


def test_who_stopped_waiting_leaves_nothing_to_who_waits_later() -> None:
    replicas, _, said, clock = away()
    replicas.absence.seconds()
    replicas.absence.unneeded()
    clock[0] = 3600.0
    assert replicas.absence.seconds() == Absence.TOLD_AFTER
    assert said == []


def test_while_somebody_is_still_at_work_nobody_is_missed() -> None:
    replicas, _, said, clock = away()
    assert replicas.absence.seconds(needed=False) is None
    clock[0] = 10_000.0
    assert replicas.absence.seconds() == Absence.TOLD_AFTER
    assert said == []


def test_an_agent_that_stays_away_ends_the_run_with_how_it_was_lost() -> None:
    replicas, _, _, clock = away()
    replicas.absence.lost(CallError(grpc.StatusCode.ABORTED, "gone", address="a:1", rpc="Generate"))
    replicas.absence.seconds()
    clock[0] = 600.0
    wanted = r"Generate at a:1 failed: ABORTED: agent 3 could not be asked for 600 s .*it broke off"
    with pytest.raises(CallError, match=wanted):
        replicas.absence.seconds()


def test_one_fixed_address_is_waited_for_but_nobody_else_is_expected() -> None:
    one, two = (Replica(address, client=None) for address in ("a:1", "b:1"))  # type: ignore[arg-type]
    assert not Replicas([one], patience=600, grow=False).elastic
    assert Replicas([one], patience=600).elastic
    assert Replicas([one, two], patience=600, grow=False).elastic
    assert not Replicas([one, two]).elastic


def test_what_may_happen_to_replicas_is_counted_from_zero() -> None:
    Replicas(agent=61)

    def value(name: str, **labels: str) -> float | None:
        return REGISTRY.get_sample_value(
            f"antiphon_learner_{name}_total", {"agent": "61", **labels}
        )

    changes = ("joined", "left", "drained", "lost", "returned", "behind")
    assert {c: value("replica_changes", change=c) for c in changes} == dict.fromkeys(changes, 0.0)
    assert value("chunks_moved") == 0.0
