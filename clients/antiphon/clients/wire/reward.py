"""Score calls on the wire (`antiphon/v1/reward.proto`)."""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.clients.types import JointAction, RewardInfo, Score, Task
from antiphon.clients.wire.checks import require, require_distinct, require_id
from antiphon.clients.wire.common import (
    joint_action_from_proto,
    joint_action_to_proto,
    score_from_proto,
    score_to_proto,
    task_to_proto,
    tasks_from_proto,
)
from antiphon.v1 import reward_pb2 as pb


def score_request_to_proto(
    run_id: str, tasks: Iterable[Task], joint_actions: Iterable[JointAction]
) -> pb.ScoreRequest:
    """A request to score `joint_actions`, with the tasks that they name."""
    return pb.ScoreRequest(
        run_id=run_id,
        tasks=[task_to_proto(task, f"tasks[{index}]") for index, task in enumerate(tasks)],
        joint_actions=[
            joint_action_to_proto(action, f"joint_actions[{index}]")
            for index, action in enumerate(joint_actions)
        ],
    )


def score_request_from_proto(
    message: pb.ScoreRequest,
) -> tuple[str, dict[str, Task], list[JointAction]]:
    """Run id, tasks by id, joint actions.

    Raises:
        FieldError: Where there is none, an id comes twice or a task is unknown.
    """
    require_id(message.run_id, "run_id")
    tasks = tasks_from_proto(message.tasks)
    require(bool(message.joint_actions), "joint_actions", "none", "at least one joint action")
    actions = [
        joint_action_from_proto(entry, f"joint_actions[{index}]", tasks=tasks)
        for index, entry in enumerate(message.joint_actions)
    ]
    require_distinct((action.id for action in actions), "joint_actions")
    return message.run_id, tasks, actions


def score_response_to_proto(scores: Iterable[Score]) -> pb.ScoreResponse:
    """The answer to a Score call."""
    return pb.ScoreResponse(
        scores=[score_to_proto(score, f"scores[{index}]") for index, score in enumerate(scores)]
    )


def score_response_from_proto(message: pb.ScoreResponse) -> list[Score]:
    """The scores in the order they came; whose ids they are is for the caller to check."""
    return [score_from_proto(entry, f"scores[{i}]") for i, entry in enumerate(message.scores)]


def reward_info_to_proto(info: RewardInfo) -> pb.GetRewardInfoResponse:
    """What a reward service says about itself."""
    return pb.GetRewardInfoResponse(
        name=info.name,
        version=info.version,
        value_min=info.value_min,
        value_max=info.value_max,
        max_batch_size=info.max_batch_size,
        max_concurrent_calls=info.max_concurrent_calls,
    )


def reward_info_from_proto(message: pb.GetRewardInfoResponse) -> RewardInfo:
    """What a reward service says about itself."""
    return RewardInfo(
        name=message.name,
        version=message.version,
        value_min=message.value_min if message.HasField("value_min") else None,
        value_max=message.value_max if message.HasField("value_max") else None,
        max_batch_size=message.max_batch_size,
        max_concurrent_calls=message.max_concurrent_calls,
    )
