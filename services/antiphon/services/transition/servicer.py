"""`TransitionService` in front of a user's transition function."""

from __future__ import annotations

from functools import partial

import grpc
from prometheus_client import Counter

from antiphon.clients.types import BranchEnd
from antiphon.clients.wire import transition_request_from_proto, transition_response_to_proto
from antiphon.services.common.user_calls import UserCalls
from antiphon.services.common.user_functions import TransitionFunction
from antiphon.v1 import transition_pb2, transition_pb2_grpc

RESULTS = Counter(
    "antiphon_transition_results_total",
    "Joint actions answered, by outcome: prompts, or end of the branch.",
    ("outcome",),
)


class TransitionServicer(transition_pb2_grpc.TransitionServiceServicer):
    """Answers `TransitionService`.

    Args:
        function: The user's.
        calls: Runs it.
    """

    def __init__(self, function: TransitionFunction, calls: UserCalls) -> None:
        self._function = function
        self._calls = calls
        for outcome in ("prompts", "end"):
            RESULTS.labels(outcome)

    async def Transition(  # noqa: N802
        self,
        request: transition_pb2.TransitionRequest,
        context: grpc.aio.ServicerContext[
            transition_pb2.TransitionRequest, transition_pb2.TransitionResponse
        ],
    ) -> transition_pb2.TransitionResponse:
        """Answers every joint action, each under its own id."""
        del context
        _, tasks, scored = transition_request_from_proto(request)
        results = []
        for entry in scored:
            action = entry.joint_action
            call = partial(self._function, tasks[action.task_id], entry)
            results.append(await self._calls.run(call, [action.id]))
        for result in results:
            RESULTS.labels("end" if isinstance(result.outcome, BranchEnd) else "prompts").inc()
        return transition_response_to_proto(results)
