"""Transition calls on the wire (`antiphon/v1/transition.proto`)."""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.clients.types import (
    BranchEnd,
    FieldError,
    NextPrompts,
    ScoredJointAction,
    Task,
    TransitionResult,
)
from antiphon.clients.wire.checks import at, encodable, require, require_distinct, require_id
from antiphon.clients.wire.common import (
    joint_action_from_proto,
    joint_action_to_proto,
    prompt_to_proto,
    said_prompt_from_proto,
    score_from_proto,
    score_to_proto,
    task_to_proto,
    tasks_from_proto,
)
from antiphon.v1 import transition_pb2 as pb


def transition_request_to_proto(
    run_id: str, tasks: Iterable[Task], scored: Iterable[ScoredJointAction]
) -> pb.TransitionRequest:
    """A request for what follows `scored`, with the tasks that they name."""
    return pb.TransitionRequest(
        run_id=run_id,
        tasks=[task_to_proto(task, f"tasks[{index}]") for index, task in enumerate(tasks)],
        joint_actions=[
            pb.ScoredJointAction(
                joint_action=joint_action_to_proto(
                    entry.joint_action, f"joint_actions[{index}].joint_action"
                ),
                score=score_to_proto(entry.score, f"joint_actions[{index}].score"),
            )
            for index, entry in enumerate(scored)
        ],
    )


def transition_request_from_proto(
    message: pb.TransitionRequest,
) -> tuple[str, dict[str, Task], list[ScoredJointAction]]:
    """Run id, tasks by id, scored joint actions.

    Raises:
        FieldError: Where there is none, an id comes twice, a task is unknown or a score belongs to
            another joint action.
    """
    require_id(message.run_id, "run_id")
    tasks = tasks_from_proto(message.tasks)
    require(bool(message.joint_actions), "joint_actions", "none", "at least one joint action")
    scored = [
        _scored_from_proto(entry, f"joint_actions[{index}]", tasks)
        for index, entry in enumerate(message.joint_actions)
    ]
    require_distinct((entry.joint_action.id for entry in scored), "joint_actions")
    return message.run_id, tasks, scored


def _scored_from_proto(
    message: pb.ScoredJointAction, field: str, tasks: dict[str, Task]
) -> ScoredJointAction:
    action = joint_action_from_proto(message.joint_action, at(field, "joint_action"), tasks=tasks)
    score = score_from_proto(message.score, at(field, "score"))
    require(
        score.joint_action_id == action.id,
        at(field, "score.joint_action_id"),
        repr(score.joint_action_id),
        f"the joint action's own id, {action.id!r}",
    )
    return ScoredJointAction(action, score)


def transition_result_to_proto(
    result: TransitionResult, field: str = "result"
) -> pb.TransitionResult:
    """What follows one joint action."""
    outcome = result.outcome
    if isinstance(outcome, BranchEnd):
        return encodable(
            lambda: pb.TransitionResult(
                joint_action_id=result.joint_action_id,
                branch_end=pb.BranchEnd(reason=outcome.reason),
            ),
            field,
        )
    prompts = [
        prompt_to_proto(prompt, at(field, f"next_prompts.prompts[{agent}]"))
        for agent, prompt in enumerate(outcome.prompts)
    ]
    return pb.TransitionResult(
        joint_action_id=result.joint_action_id, next_prompts=pb.NextPrompts(prompts=prompts)
    )


def transition_result_from_proto(
    message: pb.TransitionResult, field: str = "result"
) -> TransitionResult:
    """What follows one joint action.

    Raises:
        FieldError: It has no id or outcome, or a prompt is empty or given as token ids.
    """
    identifier = require_id(message.joint_action_id, at(field, "joint_action_id"))
    outcome = message.WhichOneof("outcome")
    if outcome == "branch_end":
        return TransitionResult(identifier, BranchEnd(message.branch_end.reason))
    if outcome != "next_prompts":
        raise FieldError(field, "neither next_prompts nor branch_end", "one of them")
    prompts = []
    for agent, entry in enumerate(message.next_prompts.prompts):
        path = at(field, f"next_prompts.prompts[{agent}]")
        prompt = said_prompt_from_proto(entry, path)
        require(bool(prompt), path, "an empty prompt", f"a prompt for agent {agent}")
        prompts.append(prompt)
    return TransitionResult(identifier, NextPrompts(tuple(prompts)))


def transition_response_to_proto(
    results: Iterable[TransitionResult],
) -> pb.TransitionResponse:
    """The answer to a Transition call."""
    return pb.TransitionResponse(
        results=[
            transition_result_to_proto(result, f"results[{index}]")
            for index, result in enumerate(results)
        ]
    )


def transition_response_from_proto(message: pb.TransitionResponse) -> list[TransitionResult]:
    """The results in the order they came; whose ids they are is for the caller to check."""
    return [
        transition_result_from_proto(entry, f"results[{index}]")
        for index, entry in enumerate(message.results)
    ]
