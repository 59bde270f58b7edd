# ruff: noqa: ARG002, N802 - names and arguments of the methods are those of gRPC.
"""The learner's own service: where the run stands, what happens in it, and steering it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Protocol

import grpc

from antiphon.clients import wire
from antiphon.clients.types import Run
from antiphon.clients.wire.checks import require_id
from antiphon.learner.control.control import RunControl, StoppedError
from antiphon.learner.control.events import EventLog
from antiphon.learner.evaluation.requests import EvaluationRefusedError
from antiphon.services.common.errors import ServiceError
from antiphon.v1 import learner_pb2 as pb
from antiphon.v1 import learner_pb2_grpc

SERVICE_NAME = "antiphon.v1.LearnerService"
Context = grpc.aio.ServicerContext[Any, Any]


class RunView(Protocol):
    """The run as it stands."""

    def snapshot(self) -> Run:
        """Where it stands now."""
        ...


class LearnerServicer(learner_pb2_grpc.LearnerServiceServicer):
    """Serves `antiphon.v1.LearnerService`.

    Args:
        run: Where the run stands.
        control: Takes what callers ask of the run.
        events: What happened so far and happens next.
    """

    def __init__(self, run: RunView, control: RunControl, events: EventLog) -> None:
        self._run = run
        self._control = control
        self._events = events

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:
        """Where the run stands."""
        return pb.GetRunResponse(run=self._now())

    async def WatchRun(
        self, request: pb.WatchRunRequest, context: Context
    ) -> AsyncIterator[pb.WatchRunResponse]:
        """Events above `after_sequence`, until the run ends."""
        async for event in self._events.follow(request.after_sequence):
            yield wire.run_event_to_proto(event)

    async def PauseRun(self, request: pb.PauseRunRequest, context: Context) -> pb.PauseRunResponse:
        """Wait before the next rollout batch."""
        self._control.pause()
        return pb.PauseRunResponse(run=self._now())

    async def ResumeRun(
        self, request: pb.ResumeRunRequest, context: Context
    ) -> pb.ResumeRunResponse:
        """Go on."""
        self._control.resume()
        return pb.ResumeRunResponse(run=self._now())

    async def StopRun(self, request: pb.StopRunRequest, context: Context) -> pb.StopRunResponse:
        """End the run: rollouts under way are dropped, updates finish."""
        if request.reason:
            require_id(request.reason, "reason")
        self._control.stop(request.reason or "StopRun")
        return pb.StopRunResponse(run=self._now())

    async def SaveCheckpoint(
        self, request: pb.SaveCheckpointRequest, context: Context
    ) -> pb.SaveCheckpointResponse:
        """Save at the next publish, or now where the run is paused."""
        return pb.SaveCheckpointResponse(path=await self._checkpoint())

    async def Evaluate(
        self, request: pb.EvaluateRequest, context: Context
    ) -> AsyncIterator[pb.EvaluateResponse]:
        """Evaluate between rollout batches; one message per task, then that of all."""
        try:
            asked = self._control.evaluations.ask(request.num_samples or None)
            async with contextlib.aclosing(asked.results()) as results:
                async for result in results:
                    yield wire.evaluation_result_to_proto(result)
        except EvaluationRefusedError as error:
            raise ServiceError(
                grpc.StatusCode.FAILED_PRECONDITION, f"no evaluation can be made: {error}"
            ) from error

    async def _checkpoint(self) -> str:
        try:
            return await self._control.ask_checkpoint()
        except StoppedError as error:
            raise ServiceError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"no checkpoint can be saved: {error}",
            ) from error
        except OSError as error:
            raise ServiceError(
                grpc.StatusCode.INTERNAL, f"the checkpoint could not be written: {error}"
            ) from error

    def _now(self) -> pb.Run:
        return wire.run_to_proto(self._run.snapshot())
