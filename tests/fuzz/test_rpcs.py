"""S17: whatever bytes come, every RPC answers with a canonical code, and the process lives on.

A few hundred inputs in every run of the tests, 10,000 in `make fuzz` (FUZZ_INPUTS, FUZZ_SEED). An
input is known by its RPC and seed, which a failure names; those that once failed are kept in
`FOUND` and tried every time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import psutil
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.integration.learner.test_learner_service import serving
from tests.integration.services.generation.harness import messages_of, push_of, request
from tests.support.models import tiny_folder
from tests.support.mutation import inputs
from tests.support.processes import Processes

from antiphon.clients.client_stream import send_stream
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
from antiphon.v1 import generation_pb2, learner_pb2, reward_pb2, transition_pb2

INPUTS = int(os.environ.get("FUZZ_INPUTS", "400"))
FIRST_SEED = int(os.environ.get("FUZZ_SEED", "0"))
AT_ONCE = 8
DEADLINE = 60.0
START_SECONDS = 300.0
GROWTH_BYTES = 96 << 20
UNCLEAN = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DATA_LOSS,
}
FOUND: dict[str, tuple[int, ...]] = {"GenerationService/Generate": (1377,)}
"""Seeds that once ended otherwise than they should, by RPC."""

FUNCTIONS = """
def score(a, b):
    return [float(len(a[0]) - len(b[0]))]

def feedback(prompt, agent_completions, num_agents):
    return ["again"] * num_agents
"""


@dataclass
class Rpc:
    """One RPC: requests that are good, how its stream goes, and codes that are right for it too.

    `streams` is a list of the good messages of a client stream, in order.
    """

    path: str
    good: Sequence[Message]
    streams: bool = False
    endless: bool = False
    also: frozenset[grpc.StatusCode] = field(default_factory=frozenset)
    deadline: float = DEADLINE


TASK = Task("t0", {"prompt": "a task"})
ACTION = JointAction("j0", "t0", 1, Phase.TRAIN, 1, (AgentAction("a task", "red"),) * 2)


def reward_rpcs() -> list[Rpc]:
    return [
        Rpc("RewardService/Score", [score_request_to_proto("run", [TASK], [ACTION])]),
        Rpc("RewardService/GetRewardInfo", [reward_pb2.GetRewardInfoRequest()]),
    ]


def transition_rpcs() -> list[Rpc]:
    scored = ScoredJointAction(ACTION, Score("j0", 0.5))
    return [
        Rpc("TransitionService/Transition", [transition_request_to_proto("run", [TASK], [scored])])
    ]


async def generation_rpcs(folder: Path) -> list[Rpc]:
    push = push_of(folder, 1)
    status = push_status_request_to_proto(push.header)
    damage = frozenset({grpc.StatusCode.DATA_LOSS})  # what the checksums are for
    parts = await messages_of(push, chunk_bytes=512)
    asked = generate_request_to_proto(request(samples=2, max_new_tokens=4))
    return [
        Rpc("GenerationService/Generate", [asked]),
        Rpc("GenerationService/PushWeights", parts, streams=True, also=damage),
        Rpc("GenerationService/GetPushStatus", [status]),
        Rpc("GenerationService/GetModelInfo", [generation_pb2.GetModelInfoRequest()]),
    ]


def learner_rpcs() -> list[Rpc]:
    waits = frozenset({grpc.StatusCode.DEADLINE_EXCEEDED})  # for what does not happen here
    watch = learner_pb2.WatchRunRequest(after_sequence=1)
    return [
        Rpc("LearnerService/GetRun", [learner_pb2.GetRunRequest()]),
        Rpc("LearnerService/WatchRun", [watch], endless=True, also=waits, deadline=0.2),
        Rpc("LearnerService/PauseRun", [learner_pb2.PauseRunRequest()]),
        Rpc("LearnerService/ResumeRun", [learner_pb2.ResumeRunRequest()]),
        Rpc("LearnerService/StopRun", [learner_pb2.StopRunRequest(reason="enough")]),
        Rpc(
            "LearnerService/SaveCheckpoint",
            [learner_pb2.SaveCheckpointRequest()],
            also=waits,
            deadline=0.2,
        ),
        Rpc(
            "LearnerService/Evaluate",
            [learner_pb2.EvaluateRequest(num_samples=2)],
            also=waits,
            deadline=0.2,
        ),
    ]


def requests_of(rpc: Rpc, chance: random.Random) -> list[bytes]:
    """What one input sends: one message, or a stream with damage, losses and repetitions."""
    if not rpc.streams:
        return [inputs(rpc.good, chance)]
    sent = [message.SerializeToString() for message in rpc.good]
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(sent) + 1)
        match chance.randrange(4):
            case 0:
                del sent[at : at + chance.choice((1, 3, 100))]
            case 1:
                sent[at:at] = sent[chance.randrange(len(sent) + 1) :][:2]
            case 2:
                sent[at : at + 1] = [inputs(rpc.good, chance)]
            case _:
                sent[at:at] = [inputs(rpc.good, chance)]
    return sent


async def answer_to(channel: grpc.aio.Channel, rpc: Rpc, sent: list[bytes]) -> grpc.StatusCode:
    path = f"/antiphon.v1.{rpc.path}"
    raw: dict[str, Any] = {"request_serializer": None, "response_deserializer": None}
    try:
        if rpc.streams:
            method = channel.stream_unary(path, **raw)
            await send_stream(method, _each(sent), timeout=rpc.deadline, metadata=())
        else:
            call: Any = channel.unary_stream(path, **raw)(sent[0], timeout=rpc.deadline)
            async for _ in call:
                if rpc.endless:
                    call.cancel()
                    break
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def _each(sent: list[bytes]) -> AsyncGenerator[bytes]:
    for message in sent:
        yield message


async def fuzz(address: str, rpcs: Sequence[Rpc], inputs_each: int) -> list[str]:
    """Send every RPC its inputs, several at once; those that ended otherwise than they should."""
    wrong: list[str] = []
    slots = asyncio.Semaphore(AT_ONCE)
    async with grpc.aio.insecure_channel(address) as channel:

        async def one(rpc: Rpc, seed: int) -> None:
            async with slots:
                sent = requests_of(rpc, random.Random(f"{rpc.path} {seed}"))
                code = await answer_to(channel, rpc, sent)
            if code in UNCLEAN - rpc.also:
                wrong.append(f"{rpc.path} seed {seed}: {code.name}")

        for rpc in rpcs:
            seeds = [*FOUND.get(rpc.path, ()), *range(FIRST_SEED, FIRST_SEED + inputs_each)]
            await asyncio.gather(*(one(rpc, seed) for seed in seeds))
    return wrong


async def is_serving(address: str, service: str) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=f"antiphon.v1.{service}"), timeout=20
        )
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@contextlib.asynccontextmanager
async def process(folder: Path, service: str) -> AsyncIterator[tuple[str, psutil.Process]]:
    """A service as a process of its own: a crash is then its end."""
    (folder / "judge.py").write_text(FUNCTIONS)
    arguments = {
        "RewardService": ("reward", "judge:score"),
        "TransitionService": ("transition", "judge:feedback"),
        "GenerationService": ("generation", "--model", str(folder / "model"), "--run-lease", "0"),
    }
    with Processes(folder) as processes:
        started = processes.serve(service, *arguments[service])
        address = await asyncio.to_thread(started.address, timeout=START_SECONDS)
        yield address, psutil.Process(started.popen.pid)
        assert started.popen.poll() is None, started.log
        assert "Traceback" not in started.log, started.log


@pytest.mark.parametrize("service", ["RewardService", "TransitionService", "GenerationService"])
async def test_whatever_comes_is_answered_cleanly_and_the_process_lives(
    tmp_path: Path, service: str
) -> None:
    """S17"""
    tiny_folder(tmp_path / "model")
    make: dict[str, Callable[[], Sequence[Rpc]]] = {
        "RewardService": reward_rpcs,
        "TransitionService": transition_rpcs,
    }
    rpcs = make[service]() if service in make else await generation_rpcs(tmp_path / "model")
    async with process(tmp_path, service) as (address, running):
        await fuzz(address, rpcs, 10)  # what is made once is there then
        before = running.memory_info().rss
        wrong = await fuzz(address, rpcs, INPUTS // 4 // len(rpcs))
        assert wrong == []
        assert running.memory_info().rss - before < GROWTH_BYTES
        assert await is_serving(address, service)


async def test_every_rpc_of_the_contract_is_among_them(tmp_path: Path) -> None:
    """S17"""
    tiny_folder(tmp_path)
    rpcs = [*reward_rpcs(), *transition_rpcs(), *await generation_rpcs(tmp_path), *learner_rpcs()]
    contract = (generation_pb2, learner_pb2, reward_pb2, transition_pb2)
    services = [s for file in contract for s in file.DESCRIPTOR.services_by_name.values()]
    assert {rpc.path for rpc in rpcs} == {f"{s.name}/{m.name}" for s in services for m in s.methods}


async def test_whatever_comes_to_the_learner_is_answered_cleanly() -> None:
    """S17"""
    rpcs = learner_rpcs()
    async with serving() as learner:
        assert await fuzz(learner.address, rpcs, INPUTS // 4 // len(rpcs)) == []
        assert await is_serving(learner.address, "LearnerService")
