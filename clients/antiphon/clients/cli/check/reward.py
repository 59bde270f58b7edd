"""What is particular to a reward service when it is checked."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import Message

from antiphon.clients.types import JointAction, Task
from antiphon.clients.wire import score_request_to_proto, score_response_from_proto
from antiphon.v1 import reward_pb2 as pb


class RewardSubject:
    """A reward service, as `suite.check_service` calls it."""

    service = "antiphon.v1.RewardService"
    rpc = "Score"
    response_type: type[Message] = pb.ScoreResponse

    def __init__(self, num_agents: int) -> None:
        self.num_agents = num_agents

    def request(self, run_id: str, task: Task, actions: Sequence[JointAction]) -> pb.ScoreRequest:
        """A request to score `actions`."""
        return score_request_to_proto(run_id, [task], actions)

    def answers(self, response: pb.ScoreResponse) -> list[tuple[str, str]]:
        """Id and value, or reason, of each score."""
        return [
            (
                score.joint_action_id,
                f"value {score.value:.6g}"
                if score.value is not None
                else f"missing: {score.missing_reason}",
            )
            for score in score_response_from_proto(response)
        ]
