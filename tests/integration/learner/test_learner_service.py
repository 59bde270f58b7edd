"""LearnerService over a real server: where the run stands, watching and steering it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import grpc
import pytest

from antiphon.clients.cli.evaluate import evaluate
from antiphon.clients.errors import CallError
from antiphon.clients.learner import LearnerClient
from antiphon.clients.types import (
    AgentStatus,
    EvaluationResult,
    MetricsLogged,
    Note,
    Run,
    RunState,
)
from antiphon.learner.control.control import RunControl
from antiphon.learner.control.events import EventLog
from antiphon.learner.control.service import SERVICE_NAME, LearnerServicer
from antiphon.services.common.server import Server, ServerSettings
from antiphon.v1.learner_pb2_grpc import (
    add_LearnerServiceServicer_to_server,
)


def run_in(state: RunState) -> Run:
    return Run(
        run_id="run-1",
        incarnation=2,
        state=state,
        run_directory="/runs/one",
        epoch=1,
        num_epochs=2,
        prompts_done=3,
        prompts_total=8,
        joint_actions=60,
        start_time=1_700_000_000.5,
        seconds_left=12.5,
        agents=(AgentStatus(0, "tiny", 4, 7), AgentStatus(1, "tiny", 3, 5)),
    )


@dataclass
class View:
    """A run that is training until it is asked to stop."""

    control: RunControl

    def snapshot(self) -> Run:
        return run_in(RunState.STOPPING if self.control.stop_asked else RunState.TRAINING)


@dataclass
class Learner:
    control: RunControl = field(default_factory=RunControl)
    events: EventLog = field(default_factory=EventLog)
    address: str = ""


@asynccontextmanager
async def serving() -> AsyncIterator[Learner]:
    learner = Learner()
    servicer = LearnerServicer(View(learner.control), learner.control, learner.events)
    server = Server(
        ServerSettings.model_validate({"metrics_port": None}),
        name="learner",
        services=[SERVICE_NAME],
        register=partial(add_LearnerServiceServicer_to_server, servicer),
    )
    await server.start()
    learner.address = server.address
    try:
        yield learner
    finally:
        learner.events.close()
        await server.stop(1)


async def test_a_run_arrives_as_it_stands() -> None:
    async with serving() as learner, LearnerClient(learner.address) as client:
        assert await client.get_run(5) == run_in(RunState.TRAINING)


async def test_pause_resume_and_stop_reach_the_run() -> None:
    async with serving() as learner, LearnerClient(learner.address) as client:
        await client.pause(5)
        assert learner.control.pause_asked
        await client.resume(5)
        assert not learner.control.pause_asked
        stopped = await client.stop("enough", 5)
        assert learner.control.stop_reason == "enough"
        assert stopped.state is RunState.STOPPING


async def test_a_watcher_sees_what_was_and_what_comes_until_the_run_ends() -> None:
    async with serving() as learner, LearnerClient(learner.address) as client:
        learner.events.append(Note("started"))
        seen: asyncio.Queue[object] = asyncio.Queue()

        async def watch() -> None:
            async for event in client.watch():
                seen.put_nowait((event.sequence, event.event))

        async with asyncio.timeout(20):
            watching = asyncio.create_task(watch())
            assert await seen.get() == (1, Note("started"))
            learner.events.append(MetricsLogged(4, {"turn_1/reward_mean": 0.25}))
            assert await seen.get() == (2, MetricsLogged(4, {"turn_1/reward_mean": 0.25}))
            learner.events.append(run_in(RunState.FINISHED))
            learner.events.close()
            assert await seen.get() == (3, run_in(RunState.FINISHED))
            await watching


async def test_a_watcher_goes_on_where_it_left_off() -> None:
    async with serving() as learner, LearnerClient(learner.address) as client:
        for text in "abc":
            learner.events.append(Note(text))
        learner.events.append(run_in(RunState.FINISHED))
        async with asyncio.timeout(20):
            events = [event async for event in client.watch(2)]
        assert [event.sequence for event in events] == [3, 4]


async def answer_checkpoints(control: RunControl, answer: str | Exception) -> None:
    """Answers the next who asks for a checkpoint, as the run does between two batches."""
    control.pause()
    await control.wait_while_paused()
    for request in control.take_checkpoint_requests():
        if isinstance(answer, str):
            request.set_result(answer)
        else:
            request.set_exception(answer)


async def test_a_checkpoint_that_is_asked_for_is_told_once_it_is_written() -> None:
    async with serving() as learner, LearnerClient(learner.address) as client:
        answering = asyncio.create_task(answer_checkpoints(learner.control, "/runs/one/c-1"))
        assert await client.save_checkpoint(20) == "/runs/one/c-1"
        await answering


async def test_a_checkpoint_that_cannot_be_written_is_told_with_the_disk_s_reason() -> None:
    async with serving() as learner, LearnerClient(learner.address) as client:
        full = OSError("no space left on device")
        answering = asyncio.create_task(answer_checkpoints(learner.control, full))
        with pytest.raises(CallError, match="no space left on device") as failed:
            await client.save_checkpoint(20)
        assert failed.value.code is grpc.StatusCode.INTERNAL
        await answering


async def test_a_checkpoint_of_a_run_that_has_ended_is_refused() -> None:
    async with serving() as learner, LearnerClient(learner.address) as client:
        asked = asyncio.create_task(client.save_checkpoint(20))
        async with asyncio.timeout(20):
            learner.control.pause()
            await learner.control.wait_while_paused()
        learner.control.end()
        for call in (asked, client.save_checkpoint(20)):
            with pytest.raises(CallError, match="the run has ended") as refused:
                await call
            assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION


async def answer_evaluations(control: RunControl, *results: EvaluationResult) -> None:
    """Answers the next who asks for an evaluation, as the run does between two batches."""
    await control.evaluations.asked.wait()
    for request in control.evaluations.take():
        for result in results:
            request.deliver(result)
        request.deliver(EvaluationResult("", {"asked": request.num_samples or 0.0}))


@pytest.mark.parametrize(("samples", "asked"), [(3, 3.0), (None, 0.0)])
async def test_an_evaluation_arrives_task_by_task_and_as_a_whole(
    samples: int | None, asked: float
) -> None:
    task = EvaluationResult("row-0", {"eval/turn_1/reward_mean": 0.25})
    async with serving() as learner, LearnerClient(learner.address) as client:
        answering = asyncio.create_task(answer_evaluations(learner.control, task))
        results = [result async for result in client.evaluate(samples, timeout=20)]
        assert results == [task, EvaluationResult("", {"asked": asked})]
        await answering


async def test_an_evaluation_that_cannot_be_made_says_why() -> None:
    async with serving() as learner, LearnerClient(learner.address) as client:
        learner.control.evaluations.refuse("this run has no evaluation dataset")
        with pytest.raises(
            CallError, match="no evaluation can be made: this run has no"
        ) as refused:
            await anext(client.evaluate(timeout=20))
        assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION


async def test_who_no_longer_waits_for_an_evaluation_is_forgotten() -> None:
    async with serving() as learner, LearnerClient(learner.address) as client:
        evaluations = learner.control.evaluations
        waiting = asyncio.create_task(anext(client.evaluate(timeout=1)))
        async with asyncio.timeout(20):
            await evaluations.asked.wait()
            (request,) = evaluations.take()
            with pytest.raises(CallError) as late:
                await waiting
            assert late.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
            while not request.dropped:
                await asyncio.sleep(0)


async def test_the_command_prints_a_line_per_task_and_then_every_figure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tasks = [
        EvaluationResult("row-0", {"eval/turn_1/reward_mean": 0.25, "eval/x": 1.0}),
        EvaluationResult("row-1", {}),
    ]
    async with serving() as learner:
        answering = asyncio.create_task(answer_evaluations(learner.control, *tasks))
        await asyncio.to_thread(evaluate, learner.address, samples=2, timeout=20)
        await answering
    assert capsys.readouterr().out.splitlines() == [
        "row-0  eval/turn_1/reward_mean 0.25",
        "row-1  no reward",
        "asked 2",
    ]
