"""The client of a run: watches it and steers it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

import grpc
import grpc.aio
from grpc.aio import EOF  # type: ignore[attr-defined]

from antiphon.clients.channel_options import PING_SECONDS
from antiphon.clients.connection import Client
from antiphon.clients.endpoint import Endpoint
from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.retry import Attempts, RetryPolicy
from antiphon.clients.types import EvaluationResult, Run, RunEvent
from antiphon.clients.wire import (
    evaluation_result_from_proto,
    run_event_from_proto,
    run_from_proto,
)
from antiphon.v1 import learner_pb2 as pb
from antiphon.v1.learner_pb2_grpc import LearnerServiceStub

IDLE_SECONDS = 120.0
"""How long a watching stream may stay silent before the learner is asked whether it lives."""


class LearnerClient(Client):
    """Watches and steers a run through its learner.

    Args:
        endpoint: Where the learner is; a plain address will do.
        retry: How often transient failures are tried again.
    """

    def __init__(self, endpoint: Endpoint | str, *, retry: RetryPolicy | None = None) -> None:
        super().__init__(
            endpoint,
            retry=retry,
            service="antiphon.v1.LearnerService",
            ping_seconds=PING_SECONDS,
        )
        self._stub = LearnerServiceStub(self._channel)  # type: ignore[no-untyped-call]

    async def get_run(self, timeout: float) -> Run:
        """Ask where the run stands."""
        return await self._run_call(self._stub.GetRun, pb.GetRunRequest(), "GetRun", timeout)

    async def pause(self, timeout: float) -> Run:
        """Stop before the next rollout batch until `resume`."""
        return await self._run_call(self._stub.PauseRun, pb.PauseRunRequest(), "PauseRun", timeout)

    async def resume(self, timeout: float) -> Run:
        """Go on after `pause`."""
        return await self._run_call(
            self._stub.ResumeRun, pb.ResumeRunRequest(), "ResumeRun", timeout
        )

    async def stop(self, reason: str, timeout: float) -> Run:
        """End the run: rollouts under way are dropped, updates finish. `reason` is recorded."""
        return await self._run_call(
            self._stub.StopRun, pb.StopRunRequest(reason=reason), "StopRun", timeout
        )

    async def save_checkpoint(self, timeout: float) -> str:
        """Have a checkpoint saved at the next publish; its path on the learner's machine.

        Args:
            timeout: Seconds to wait until it is written, a rollout batch and its update included.
        """
        return await self._call(
            self._stub.SaveCheckpoint,
            pb.SaveCheckpointRequest(),
            lambda response: str(response.path),
            rpc="SaveCheckpoint",
            timeout=timeout,
        )

    async def evaluate(
        self, num_samples: int | None = None, *, timeout: float
    ) -> AsyncGenerator[EvaluationResult, None]:
        """Have the present policies evaluated, between two rollout batches.

        It is asked for once: what breaks on the way is not asked again.

        Args:
            num_samples: Most tasks to evaluate; None for the run's setting.
            timeout: Deadline in seconds of all of it, the batch under way included.

        Yields:
            A result per task as it comes, then the one of all, whose `task_id` is empty.

        Raises:
            CallError: The learner cannot be reached, or refuses.
            ContractError: The results end before the one of all.
        """
        call = self._stub.Evaluate(
            pb.EvaluateRequest(num_samples=num_samples or 0),
            timeout=timeout,
            metadata=self.endpoint.metadata(),
        )
        try:
            while (response := await call.read()) is not EOF:
                result = evaluation_result_from_proto(response)
                yield result
                if not result.task_id:
                    return
            raise ContractError(self.address, "Evaluate", "the stream ended without its totals")
        except grpc.aio.AioRpcError as error:
            raise self._error(error, "Evaluate") from error
        finally:
            call.cancel()

    async def watch(
        self,
        after_sequence: int = 0,
        *,
        idle_seconds: float = IDLE_SECONDS,
        timeout: float = 20.0,
        on_failure: Callable[[CallError], object] = lambda _: None,
    ) -> AsyncGenerator[RunEvent, None]:
        """Yield what happens until the run ends; a broken stream is opened again.

        The stream itself has no deadline. Where it stays silent, the learner is asked whether it
        lives. A learner that was started anew is watched from its first event on.

        Args:
            after_sequence: Events above this sequence number are sent; 0 for all that are kept.
            idle_seconds: How long the stream may stay silent.
            timeout: Deadline in seconds of the question whether the learner lives.
            on_failure: Told of what fails and is tried again.

        Raises:
            CallError: The learner cannot be reached, or refuses.
            ContractError: An event is malformed.
        """
        attempts = Attempts(self.retry)
        incarnation = 0
        while True:
            try:
                run = run_from_proto((await self._ask_run(timeout)).run)
                if incarnation and run.incarnation != incarnation:
                    after_sequence = 0
                incarnation = run.incarnation
                stream = self._watch_once(after_sequence, idle_seconds)
                async with contextlib.aclosing(stream):
                    async for event in stream:
                        attempts.progressed()
                        after_sequence = event.sequence
                        yield event
                        if isinstance(event.event, Run) and event.event.state.ended:
                            return
                if run.state.ended:
                    return
                raise CallError(
                    grpc.StatusCode.UNAVAILABLE,
                    "the stream ended before the run did",
                    address=self.address,
                    rpc="WatchRun",
                )
            except TimeoutError:
                # Silence: the next turn of the loop asks whether the learner lives.
                continue
            except CallError as error:
                if error.transient:
                    on_failure(error)
                await attempts.pause_after(error)

    async def _watch_once(
        self, after_sequence: int, idle_seconds: float
    ) -> AsyncGenerator[RunEvent, None]:
        """Yield events until the stream ends or stays silent for too long."""
        call = self._stub.WatchRun(
            pb.WatchRunRequest(after_sequence=after_sequence), metadata=self.endpoint.metadata()
        )
        try:
            while True:
                async with asyncio.timeout(idle_seconds):
                    response = await call.read()
                if response is EOF:
                    return
                yield self._checked("WatchRun", run_event_from_proto, response)
        except grpc.aio.AioRpcError as error:
            raise self._error(error, "WatchRun") from error
        finally:
            call.cancel()

    async def _ask_run(self, timeout: float) -> pb.GetRunResponse:
        response: pb.GetRunResponse = await self._once(
            self._stub.GetRun, "GetRun", pb.GetRunRequest(), timeout
        )
        return response

    async def _run_call(self, method: Any, request: Any, rpc: str, timeout: float) -> Run:
        return await self._call(
            method,
            request,
            lambda response: run_from_proto(response.run),
            rpc=rpc,
            timeout=timeout,
        )
