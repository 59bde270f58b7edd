"""Every RPC of the contract and of health, with requests that are good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from tests.integration.services.generation.harness import messages_of, push_of, request

from antiphon.clients.types import (
    AgentAction,
    JointAction,
    Phase,
    Score,
    ScoredJointAction,
    Task,
)
from antiphon.clients.wire import (
    generate_request_to_proto,
    push_status_request_to_proto,
    score_request_to_proto,
    transition_request_to_proto,
)
from antiphon.v1 import generation_pb2, learner_pb2, reward_pb2

DEADLINE = 60.0


@dataclass
class Rpc:
    """One RPC: requests that are good, how its stream goes, and codes that are right for it too.

    Where it `streams`, `good` are the messages of a client stream, in order. Inputs have the
    `deadline`.
    """

    path: str
    good: Sequence[Message]
    streams: bool = False
    endless: bool = False
    also: frozenset[grpc.StatusCode] = field(default_factory=frozenset)
    deadline: float = DEADLINE

    def good_of(self, run: str) -> list[Message]:
        """The good requests as a run sends them that nobody has heard of yet.

        An input that is taken may put an end to what its run can do.
        """
        return [_of_run(message, run) for message in self.good]


def _of_run(message: Message, run: str) -> Message:
    copy: Any = type(message)()
    copy.CopyFrom(message)
    fields = copy.DESCRIPTOR.fields_by_name
    if "run_id" in fields:
        copy.run_id = run
    elif "header" in fields and copy.HasField("header"):
        copy.header.run_id = run
    return copy  # type: ignore[no-any-return]


TASK = Task("t0", {"prompt": "a task"})
ACTION = JointAction("j0", "t0", 1, Phase.TRAIN, 1, (AgentAction("a task", "red"),) * 2)


def reward_rpcs() -> list[Rpc]:
    return [
        Rpc("antiphon.v1.RewardService/Score", [score_request_to_proto("run", [TASK], [ACTION])]),
        Rpc("antiphon.v1.RewardService/GetRewardInfo", [reward_pb2.GetRewardInfoRequest()]),
    ]


def transition_rpcs() -> list[Rpc]:
    scored = ScoredJointAction(ACTION, Score("j0", 0.5))
    return [
        Rpc(
            "antiphon.v1.TransitionService/Transition",
            [transition_request_to_proto("run", [TASK], [scored])],
        )
    ]


async def generation_rpcs(folder: Path) -> list[Rpc]:
    push = push_of(folder, 1)
    status = push_status_request_to_proto(push.header)
    damage = frozenset({grpc.StatusCode.DATA_LOSS})  # what the checksums are for
    parts = await messages_of(push, chunk_bytes=512)
    asked = generate_request_to_proto(request(samples=2, max_new_tokens=4))
    return [
        Rpc("antiphon.v1.GenerationService/Generate", [asked]),
        Rpc("antiphon.v1.GenerationService/PushWeights", parts, streams=True, also=damage),
        Rpc("antiphon.v1.GenerationService/GetPushStatus", [status]),
        Rpc("antiphon.v1.GenerationService/GetModelInfo", [generation_pb2.GetModelInfoRequest()]),
    ]


def learner_rpcs() -> list[Rpc]:
    names = ("GetRun", "PauseRun", "ResumeRun", "SaveCheckpoint")
    plain = [
        Rpc(f"antiphon.v1.LearnerService/{name}", [getattr(learner_pb2, f"{name}Request")()])
        for name in names
    ]
    return [
        *plain,
        Rpc(
            "antiphon.v1.LearnerService/WatchRun",
            [learner_pb2.WatchRunRequest()],
            endless=True,
            also=frozenset({grpc.StatusCode.DEADLINE_EXCEEDED}),  # for what does not happen here
            deadline=0.5,
        ),
        Rpc("antiphon.v1.LearnerService/Evaluate", [learner_pb2.EvaluateRequest(num_samples=2)]),
        # The last one, since there is nothing to ask of a run that has stopped.
        Rpc("antiphon.v1.LearnerService/StopRun", [learner_pb2.StopRunRequest(reason="enough")]),
    ]


def health_rpcs() -> list[Rpc]:
    """Open to whoever can reach a port."""
    asked = [health_pb2.HealthCheckRequest(service="")]
    return [
        Rpc("grpc.health.v1.Health/Check", asked),
        Rpc("grpc.health.v1.Health/Watch", asked, endless=True),
        Rpc("grpc.health.v1.Health/List", [health_pb2.HealthListRequest()]),
    ]
