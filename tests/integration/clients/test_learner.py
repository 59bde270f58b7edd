"""Watching and steering a run over a real connection."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from tests.integration.clients.servers import QUICK, abort, serving, within

from antiphon.clients.errors import CallError
from antiphon.clients.learner import LearnerClient
from antiphon.clients.types import MetricsLogged, Note, Run, RunEvent, RunState
from antiphon.clients.wire import run_event_to_proto, run_to_proto
from antiphon.v1 import learner_pb2 as pb
from antiphon.v1.learner_pb2_grpc import (
    LearnerServiceServicer,
    add_LearnerServiceServicer_to_server,
)

RUN = Run("r", 1, RunState.TRAINING, "/runs/r", 1, 2, 0, 8, 0, 0.0, None, ())
DONE = dataclasses.replace(RUN, state=RunState.FINISHED)
EVENTS = [
    RunEvent(1, 1.0, RUN),
    RunEvent(2, 2.0, MetricsLogged(4, {"turn_1/reward_mean": 0.5})),
    RunEvent(3, 3.0, Note("hello")),
    RunEvent(4, 4.0, DONE),
]

Script = Callable[[int, Any], AsyncIterator[RunEvent]]


class Learner(LearnerServiceServicer):
    """A run that a test scripts: one script per WatchRun call, the last one goes on."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.run = RUN
        self.after: list[int] = []
        self.calls: list[str] = []

    async def WatchRun(self, request: pb.WatchRunRequest, context: Any) -> Any:  # noqa: N802
        self.after.append(request.after_sequence)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        async for event in script(request.after_sequence, context):
            yield run_event_to_proto(event)

    async def GetRun(self, request: Any, context: Any) -> pb.GetRunResponse:  # noqa: N802
        return pb.GetRunResponse(run=run_to_proto(self.run))

    async def PauseRun(self, request: Any, context: Any) -> pb.PauseRunResponse:  # noqa: N802
        self.calls.append("pause")
        run = dataclasses.replace(RUN, state=RunState.PAUSED)
        return pb.PauseRunResponse(run=run_to_proto(run))

    async def ResumeRun(self, request: Any, context: Any) -> pb.ResumeRunResponse:  # noqa: N802
        self.calls.append("resume")
        return pb.ResumeRunResponse(run=run_to_proto(RUN))

    async def StopRun(  # noqa: N802
        self, request: pb.StopRunRequest, context: Any
    ) -> pb.StopRunResponse:
        self.calls.append(f"stop: {request.reason}")
        run = dataclasses.replace(RUN, state=RunState.STOPPING)
        return pb.StopRunResponse(run=run_to_proto(run))

    def register(self, server: grpc.aio.Server) -> None:
        add_LearnerServiceServicer_to_server(self, server)


async def tells(after: int, context: Any) -> AsyncIterator[RunEvent]:
    for event in EVENTS[after:]:
        yield event


async def watch(learner: Learner, address: str = "127.0.0.1:0", **options: Any) -> list[RunEvent]:
    async def all_of_it(client: LearnerClient) -> list[RunEvent]:
        return [event async for event in client.watch(**options)]

    async with (
        serving(learner.register, address) as target,
        LearnerClient(target, retry=QUICK) as client,
    ):
        result: list[RunEvent] = await within(all_of_it(client))
        return result


async def test_watching_ends_with_the_run(address: str) -> None:
    """S13: nobody waits for a run that is over, even while its server goes on."""

    async def tells_and_stays(after: int, context: Any) -> AsyncIterator[RunEvent]:
        for event in EVENTS:
            yield event
        await asyncio.Event().wait()

    assert await watch(Learner(tells_and_stays), address) == EVENTS


async def test_a_broken_stream_goes_on_after_the_last_event_seen(address: str) -> None:
    """S8: nothing is told twice, nothing is left out."""

    async def breaks(after: int, context: Any) -> AsyncIterator[RunEvent]:
        for event in EVENTS[after : after + 1]:
            yield event
        await abort(context, grpc.StatusCode.UNAVAILABLE)

    learner = Learner(breaks, breaks, tells)
    assert await watch(learner, address) == EVENTS
    assert learner.after == [0, 1, 2]


async def test_a_stream_that_ends_before_the_run_is_opened_again(address: str) -> None:
    """S8: a server that drains ends its streams."""

    async def ends_early(after: int, context: Any) -> AsyncIterator[RunEvent]:
        for event in EVENTS[:2]:
            yield event

    learner = Learner(ends_early, tells)
    assert await watch(learner, address) == EVENTS
    assert learner.after == [0, 2]


async def test_a_learner_that_started_anew_is_watched_from_its_first_event() -> None:
    """S7: its sequence numbers begin again at 1."""
    learner = Learner()

    async def dies(after: int, context: Any) -> AsyncIterator[RunEvent]:
        for event in EVENTS[:3]:
            yield event
        learner.run = dataclasses.replace(RUN, incarnation=2)
        await abort(context, grpc.StatusCode.UNAVAILABLE)

    learner.scripts = [dies, tells]
    assert await watch(learner) == EVENTS[:3] + EVENTS
    assert learner.after == [0, 0]


async def test_a_silent_stream_is_opened_again_when_the_learner_lives(address: str) -> None:
    """S5: streams without a deadline have an idle limit."""

    async def falls_silent(after: int, context: Any) -> AsyncIterator[RunEvent]:
        yield EVENTS[0]
        await asyncio.Event().wait()

    learner = Learner(falls_silent, tells)
    assert await watch(learner, address, idle_seconds=0.2) == EVENTS
    assert learner.after == [0, 1]


async def test_a_learner_that_is_gone_ends_the_watch_with_an_error() -> None:
    """S5: bounded, not for ever."""
    learner = Learner(tells)
    async with serving(learner.register) as target:
        gone = target
    async with LearnerClient(gone, retry=QUICK) as client:
        with pytest.raises(CallError, match=gone):
            await within(anext(client.watch()))


async def test_a_refusal_is_told_at_once() -> None:
    async def refuses(after: int, context: Any) -> AsyncIterator[RunEvent]:
        await abort(context, grpc.StatusCode.PERMISSION_DENIED, "not for you")
        yield EVENTS[0]

    learner = Learner(refuses)
    with pytest.raises(CallError, match="not for you"):
        await watch(learner)
    assert len(learner.after) == 1


async def test_a_run_that_has_ended_is_told_and_left() -> None:
    learner = Learner(tells)
    learner.run = DONE
    assert await watch(learner, after_sequence=4) == []


async def test_a_run_is_paused_resumed_and_stopped(address: str) -> None:
    learner = Learner(tells)
    async with serving(learner.register, address) as target, LearnerClient(target) as client:
        assert await within(client.get_run(timeout=20)) == RUN
        assert (await within(client.pause(timeout=20))).state is RunState.PAUSED
        assert await within(client.resume(timeout=20)) == RUN
        stopped = await within(client.stop("enough", timeout=20))
    assert stopped.state is RunState.STOPPING
    assert learner.calls == ["pause", "resume", "stop: enough"]
