"""What is particular to a transition service when it is checked."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import Message

from antiphon.clients.types import (
    BranchEnd,
    FieldError,
    JointAction,
    Score,
    ScoredJointAction,
    Task,
)
from antiphon.clients.wire import transition_request_to_proto, transition_response_from_proto
from antiphon.v1 import transition_pb2 as pb


class TransitionSubject:
    """A transition service, as `suite.check_service` calls it."""

    service = "antiphon.v1.TransitionService"
    rpc = "Transition"
    response_type: type[Message] = pb.TransitionResponse

    def __init__(self, num_agents: int) -> None:
        self.num_agents = num_agents

    def request(
        self, run_id: str, task: Task, actions: Sequence[JointAction]
    ) -> pb.TransitionRequest:
        """A request for what follows `actions`, each with a score, every other one with an info."""
        scored = [
            ScoredJointAction(
                action,
                Score(
                    action.id,
                    0.25 * (index % 4),
                    components={"length": 0.5} if index % 2 else {},
                    info={"note": "from the check"} if index % 2 else None,
                ),
            )
            for index, action in enumerate(actions)
        ]
        return transition_request_to_proto(run_id, [task], scored)

    def answers(self, response: pb.TransitionResponse) -> list[tuple[str, str]]:
        """Id and prompts, or end, of each result."""
        answers = []
        for index, result in enumerate(transition_response_from_proto(response)):
            outcome = result.outcome
            if isinstance(outcome, BranchEnd):
                answers.append((result.joint_action_id, f"the branch ends: {outcome.reason}"))
                continue
            if len(outcome.prompts) != self.num_agents:
                raise FieldError(
                    f"results[{index}].next_prompts.prompts",
                    f"{len(outcome.prompts)} prompts",
                    f"{self.num_agents}, one per agent",
                )
            answers.append((result.joint_action_id, f"prompts {outcome.prompts!r}"))
        return answers
