"""A reward and a transition service that a test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from antiphon.clients.types import (
    AgentAction,
    JointAction,
    NextPrompts,
    Phase,
    RewardInfo,
    Score,
    ScoredJointAction,
    Task,
    TransitionResult,
)
from antiphon.clients.wire import (
    reward_info_to_proto,
    score_request_from_proto,
    score_response_to_proto,
    transition_request_from_proto,
    transition_response_to_proto,
)
from antiphon.v1.reward_pb2_grpc import RewardServiceServicer, add_RewardServiceServicer_to_server
from antiphon.v1.transition_pb2_grpc import (
    TransitionServiceServicer,
    add_TransitionServiceServicer_to_server,
)

TASKS = [Task("t0", {"prompt": "p0"}), Task("t1", {"prompt": "p1"})]


def joint_action(
    number: int, *, task: int = 0, completion: str = "c", id_: str = ""
) -> JointAction:
    return JointAction(
        id=id_ or f"j{number}",
        task_id=f"t{task}",
        turn=1,
        phase=Phase.TRAIN,
        attempt=1,
        actions=(AgentAction("p", completion), AgentAction("p", "d")),
    )


ScoreScript = Callable[[list[JointAction], Any], Awaitable[list[Score]]]


def score_of(action: JointAction) -> Score:
    """The score that the id asks for: "j7" gets 7."""
    return Score(action.id, float(action.id[1:]))


async def scores(actions: list[JointAction], context: Any) -> list[Score]:
    """Scores in the opposite order, since any order is allowed."""
    return [score_of(action) for action in reversed(actions)]


class Judge(RewardServiceServicer):
    """Answers as scripted; the last script goes on.

    No call is answered before `together` calls have been under way at once.
    """

    def __init__(
        self, *scripts: ScoreScript, info: RewardInfo | None = None, together: int = 1
    ) -> None:
        self.scripts = list(scripts) or [scores]
        self.info = info
        self.asked: list[list[JointAction]] = []
        self.tasks: list[set[str]] = []
        self.metadata: list[dict[str, str]] = []
        self.info_calls = 0
        self.running = 0
        self.most_running = 0
        self._together = together
        self._met = asyncio.Event()

    async def Score(self, request: Any, context: Any) -> Any:  # noqa: N802
        _, tasks, actions = score_request_from_proto(request)
        self.asked.append(actions)
        self.tasks.append(set(tasks))
        self.metadata.append(dict(context.invocation_metadata()))
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        if self.most_running >= self._together:
            self._met.set()
        try:
            await self._met.wait()
            # Lets every call that is under way arrive before the first is answered.
            for _ in range(20):
                await asyncio.sleep(0)
            return score_response_to_proto(await script(actions, context))
        finally:
            self.running -= 1

    async def GetRewardInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.info_calls += 1
        if self.info is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not offered")
        assert self.info is not None
        return reward_info_to_proto(self.info)

    def register(self, server: grpc.aio.Server) -> None:
        add_RewardServiceServicer_to_server(self, server)


TransitionScript = Callable[[list[ScoredJointAction], Any], Awaitable[list[TransitionResult]]]


async def prompts(scored: list[ScoredJointAction], context: Any) -> list[TransitionResult]:
    """A prompt per agent that names the joint action, in the opposite order."""
    return [
        TransitionResult(
            entry.joint_action.id,
            NextPrompts(
                tuple(f"{entry.joint_action.id} again" for _ in entry.joint_action.actions)
            ),
        )
        for entry in reversed(scored)
    ]


class Guide(TransitionServiceServicer):
    """Answers as scripted; the last script goes on."""

    def __init__(self, *scripts: TransitionScript) -> None:
        self.scripts = list(scripts) or [prompts]
        self.asked: list[list[ScoredJointAction]] = []

    async def Transition(self, request: Any, context: Any) -> Any:  # noqa: N802
        _, _, scored = transition_request_from_proto(request)
        self.asked.append(scored)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        return transition_response_to_proto(await script(scored, context))

    def register(self, server: grpc.aio.Server) -> None:
        add_TransitionServiceServicer_to_server(self, server)
