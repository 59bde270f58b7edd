"""`RewardService` in front of a user's reward function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import grpc
from prometheus_client import Counter, Histogram

from antiphon.clients.types import JointAction, RewardInfo, Task
from antiphon.clients.types import Score as JointScore
from antiphon.clients.wire import (
    reward_info_to_proto,
    score_request_from_proto,
    score_response_to_proto,
)
from antiphon.services.common.user_calls import UserCalls
from antiphon.services.common.user_functions import RewardFunction
from antiphon.v1 import reward_pb2, reward_pb2_grpc

SCORES = Counter(
    "antiphon_reward_scores_total",
    "Joint actions answered, by outcome: value or missing.",
    ("outcome",),
)
VALUES = Histogram(
    "antiphon_reward_value",
    "Scores as the function returned them.",
    buckets=(-10, -5, -2, -1, -0.5, -0.2, 0, 0.2, 0.4, 0.6, 0.8, 1, 2, 5, 10),
)


class RewardServicer(reward_pb2_grpc.RewardServiceServicer):
    """Answers `RewardService`.

    Args:
        function: The user's.
        calls: Runs it.
        info: What `GetRewardInfo` says.
    """

    def __init__(self, function: RewardFunction, calls: UserCalls, info: RewardInfo) -> None:
        self._function = function
        self._calls = calls
        self._info = info
        for outcome in ("value", "missing"):
            SCORES.labels(outcome)

    async def Score(  # noqa: N802
        self,
        request: reward_pb2.ScoreRequest,
        context: grpc.aio.ServicerContext[reward_pb2.ScoreRequest, reward_pb2.ScoreResponse],
    ) -> reward_pb2.ScoreResponse:
        """Scores every joint action, each under its own id."""
        del context
        _, tasks, joint_actions = score_request_from_proto(request)
        return score_response_to_proto(await self._score(tasks, joint_actions))

    async def GetRewardInfo(  # noqa: N802
        self,
        request: reward_pb2.GetRewardInfoRequest,
        context: grpc.aio.ServicerContext[
            reward_pb2.GetRewardInfoRequest, reward_pb2.GetRewardInfoResponse
        ],
    ) -> reward_pb2.GetRewardInfoResponse:
        """Says what the service is."""
        del request, context
        return reward_info_to_proto(self._info)

    async def _score(
        self, tasks: Mapping[str, Task], joint_actions: Sequence[JointAction]
    ) -> list[JointScore]:
        scores: list[JointScore] = []
        for batch in self._function.batches(joint_actions):
            call = partial(self._function, tasks, batch)
            scores += await self._calls.run(call, [action.id for action in batch])
        for score in scores:
            SCORES.labels("missing" if score.value is None else "value").inc()
            if score.value is not None:
                VALUES.observe(score.value)
        return scores
