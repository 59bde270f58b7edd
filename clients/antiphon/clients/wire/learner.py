"""Runs and their events on the wire (`antiphon/v1/learner.proto`)."""

from __future__ import annotations

import math

from google.protobuf.timestamp_pb2 import Timestamp

from antiphon.clients.types import (
    AgentStatus,
    EvaluationResult,
    FieldError,
    MetricsLogged,
    Note,
    Run,
    RunEvent,
    RunState,
)
from antiphon.clients.wire.checks import at, enum_from_proto, require, require_at_least
from antiphon.v1 import learner_pb2 as pb

_STATES = {
    pb.RUN_STATE_STARTING: RunState.STARTING,
    pb.RUN_STATE_TRAINING: RunState.TRAINING,
    pb.RUN_STATE_PAUSED: RunState.PAUSED,
    pb.RUN_STATE_STOPPING: RunState.STOPPING,
    pb.RUN_STATE_FINISHED: RunState.FINISHED,
    pb.RUN_STATE_STOPPED: RunState.STOPPED,
    pb.RUN_STATE_FAILED: RunState.FAILED,
}
_STATE_NUMBERS = {state: number for number, state in _STATES.items()}


def _time_to_proto(seconds: float) -> Timestamp:
    whole = math.floor(seconds)
    return Timestamp(seconds=whole, nanos=min(round((seconds - whole) * 1e9), 10**9 - 1))


def _time_from_proto(message: Timestamp) -> float:
    return message.seconds + message.nanos / 1e9


def run_to_proto(run: Run) -> pb.Run:
    """A run as it stands."""
    return pb.Run(
        run_id=run.run_id,
        incarnation=run.incarnation,
        state=_STATE_NUMBERS[run.state],
        run_directory=run.run_directory,
        epoch=run.epoch,
        num_epochs=run.num_epochs,
        prompts_done=run.prompts_done,
        prompts_total=run.prompts_total,
        joint_actions=run.joint_actions,
        start_time=_time_to_proto(run.start_time),
        seconds_left=run.seconds_left,
        agents=[
            pb.AgentStatus(
                agent=agent.agent,
                model=agent.model,
                weights_version=agent.weights_version,
                optimizer_steps=agent.optimizer_steps,
            )
            for agent in run.agents
        ],
        error=run.error,
    )


def run_from_proto(message: pb.Run, field: str = "run") -> Run:
    """A run as it stands; FieldError where its state is not said."""
    return Run(
        run_id=message.run_id,
        incarnation=message.incarnation,
        state=enum_from_proto(message.state, _STATES, at(field, "state")),
        run_directory=message.run_directory,
        epoch=message.epoch,
        num_epochs=message.num_epochs,
        prompts_done=message.prompts_done,
        prompts_total=message.prompts_total,
        joint_actions=message.joint_actions,
        start_time=_time_from_proto(message.start_time),
        seconds_left=message.seconds_left if message.HasField("seconds_left") else None,
        agents=tuple(
            AgentStatus(entry.agent, entry.model, entry.weights_version, entry.optimizer_steps)
            for entry in message.agents
        ),
        error=message.error,
    )


def run_event_to_proto(event: RunEvent) -> pb.WatchRunResponse:
    """An event as WatchRun sends it, with how many before it were missed."""
    message = pb.RunEvent(sequence=event.sequence, time=_time_to_proto(event.time))
    what = event.event
    if isinstance(what, Run):
        message.run.CopyFrom(run_to_proto(what))
    elif isinstance(what, MetricsLogged):
        message.metrics.CopyFrom(
            pb.MetricsLogged(joint_actions=what.joint_actions, values=what.values)
        )
    else:
        message.note.CopyFrom(pb.Note(text=what.text))
    return pb.WatchRunResponse(event=message, missed=event.missed)


def run_event_from_proto(message: pb.WatchRunResponse) -> RunEvent:
    """An event as WatchRun sends it; FieldError where it does not say what happened."""
    event = message.event
    require_at_least(event.sequence, 1, "event.sequence")
    kind = event.WhichOneof("event")
    require(kind is not None, "event", "nothing", "a run, metrics or a note")
    what: Run | MetricsLogged | Note
    if kind == "run":
        what = run_from_proto(event.run, "event.run")
    elif kind == "metrics":
        what = MetricsLogged(event.metrics.joint_actions, dict(event.metrics.values))
    elif kind == "note":
        what = Note(event.note.text)
    else:
        raise FieldError("event", kind, "a run, metrics or a note")
    return RunEvent(
        sequence=event.sequence,
        time=_time_from_proto(event.time),
        event=what,
        missed=message.missed,
    )


def evaluation_result_to_proto(result: EvaluationResult) -> pb.EvaluateResponse:
    """Figures of a task, or of all."""
    return pb.EvaluateResponse(task_id=result.task_id, values=result.values)


def evaluation_result_from_proto(message: pb.EvaluateResponse) -> EvaluationResult:
    """Read what a learner tells of an evaluation."""
    return EvaluationResult(message.task_id, dict(message.values))
