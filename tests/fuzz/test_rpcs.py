"""S17: whatever bytes come, every RPC answers with a canonical code, and the process lives on.

A few hundred inputs in every run of the tests, 10,000 in `make fuzz` (FUZZ_INPUTS, FUZZ_SEED). An
input is known by its RPC and seed, which a failure names; it is kept and tried every time
(`found.py`). Before and after its inputs each RPC is called as it should be, and answers: what is
sent reaches what it is meant for.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.fuzz.damage import FIRST_SEED, INPUTS
from tests.fuzz.found import found, keep
from tests.fuzz.rpcs import (
    DEADLINE,
    Rpc,
    generation_rpcs,
    health_rpcs,
    learner_rpcs,
    reward_rpcs,
    transition_rpcs,
)
from tests.integration.learner.test_learner_service import Learner, serving
from tests.support.models import tiny_folder
from tests.support.mutation import inputs
from tests.support.processes import Processes

from antiphon.clients.client_stream import send_stream
from antiphon.clients.types import (
    EvaluationResult,
    Note,
)
from antiphon.v1 import generation_pb2, learner_pb2, reward_pb2, transition_pb2

WARM_UP = 10
"""Inputs of an RPC after which what is made once is there."""
AT_ONCE = 8
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
FUNCTIONS = """
def score(a, b):
    return [float(len(a[0]) - len(b[0]))]

def feedback(prompt, agent_completions, num_agents):
    return ["again"] * num_agents
"""


def requests_of(rpc: Rpc, seed: int) -> list[bytes]:
    """What one input sends: one message, or a stream with damage, losses and repetitions."""
    chance = random.Random(f"{rpc.path} {seed}")
    good = rpc.good_of(f"run {seed}")
    if not rpc.streams:
        return [inputs(good, chance)]
    sent = [message.SerializeToString() for message in good]
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(sent) + 1)
        match chance.randrange(4):
            case 0:
                del sent[at : at + chance.choice((1, 3, 100))]
            case 1:
                sent[at:at] = sent[chance.randrange(len(sent) + 1) :][:2]
            case 2:
                sent[at : at + 1] = [inputs(good, chance)]
            case _:
                sent[at:at] = [inputs(good, chance)]
    return sent


async def answer_to(
    channel: grpc.aio.Channel, rpc: Rpc, sent: Sequence[bytes], deadline: float = DEADLINE
) -> grpc.StatusCode:
    path = f"/{rpc.path}"
    raw: dict[str, Any] = {"request_serializer": None, "response_deserializer": None}
    try:
        if rpc.streams:
            method = channel.stream_unary(path, **raw)
            await send_stream(method, _each(sent), timeout=deadline, metadata=())
        else:
            call: Any = channel.unary_stream(path, **raw)(sent[0], timeout=deadline)
            async for _ in call:
                if rpc.endless:
                    call.cancel()
                    break
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def _each(sent: Sequence[bytes]) -> AsyncGenerator[bytes]:
    for message in sent:
        yield message


async def fuzz(address: str, rpc: Rpc, seeds: Sequence[int]) -> list[str]:
    """Send an RPC those found and those of the seeds; what ended otherwise than it should."""
    wrong: list[str] = []
    # A stream that brings weights takes the place of the one before.
    slots = asyncio.Semaphore(1 if rpc.streams else AT_ONCE)
    kind = rpc.path.replace("/", ".")
    async with grpc.aio.insecure_channel(address) as channel:

        async def good(when: str) -> None:
            sent = [m.SerializeToString() for m in rpc.good_of(f"run {when} {seeds}")]
            code = await answer_to(channel, rpc, sent)
            if code is not grpc.StatusCode.OK:
                wrong.append(f"{rpc.path} as it should be, {when} {seeds}: {code.name}")

        async def one(name: str, sent: Sequence[bytes]) -> None:
            async with slots:
                code = await answer_to(channel, rpc, sent, rpc.deadline)
            if code in UNCLEAN - rpc.also:
                wrong.append(f"{rpc.path} {name}: {code.name}, kept in {keep(kind, name, sent)}")

        await good("before")
        made = {str(seed): requests_of(rpc, seed) for seed in seeds}
        await asyncio.gather(*(one(name, sent) for name, sent in (found(kind) | made).items()))
        await good("after")
    return wrong


async def fuzz_all(
    rpcs: Sequence[Rpc], addresses: Sequence[str], running: psutil.Process
) -> tuple[list[str], int]:
    """Send RPCs their inputs at the first address, and health its own at each.

    Returns:
        What went wrong, and by how many bytes memory has grown after an RPC's first inputs.
    """
    share = INPUTS // 4 // len(rpcs)
    calls = [(addresses[0], rpc, share) for rpc in rpcs]
    calls += [(address, rpc, INPUTS // 20) for address in addresses for rpc in health_rpcs()]
    wrong, grown = list[str](), 0
    for address, rpc, count in calls:
        wrong += await fuzz(address, rpc, range(FIRST_SEED, FIRST_SEED + WARM_UP))
        before = running.memory_info().rss
        first = FIRST_SEED + WARM_UP
        wrong += await fuzz(address, rpc, range(first, first + count))
        grown += running.memory_info().rss - before
    return wrong, grown


async def is_serving(address: str, service: str) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=f"antiphon.v1.{service}"), timeout=20
        )
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@dataclass
class Running:
    """A service as a process of its own: a crash is then its end."""

    address: str
    health_address: str
    process: psutil.Process


@contextlib.asynccontextmanager
async def serve(folder: Path, service: str) -> AsyncIterator[Running]:
    (folder / "judge.py").write_text(FUNCTIONS)
    arguments = {
        "RewardService": ("reward", "judge:score"),
        "TransitionService": ("transition", "judge:feedback"),
        "GenerationService": ("generation", "--model", str(folder / "model"), "--run-lease", "0"),
    }
    with Processes(folder) as processes:
        started = processes.serve(service, *arguments[service], "--health-port", "0")
        told = await asyncio.to_thread(started.description, timeout=START_SECONDS)
        process = psutil.Process(started.popen.pid)
        yield Running(told["address"], told["health_address"], process)
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
    async with serve(tmp_path, service) as running:
        addresses = (running.address, running.health_address)
        wrong, grown = await fuzz_all(rpcs, addresses, running.process)
        assert wrong == []
        assert grown < GROWTH_BYTES
        assert [await is_serving(address, service) for address in addresses] == [True, True]


async def test_every_rpc_that_a_server_has_is_among_them(tmp_path: Path) -> None:
    """S17"""
    tiny_folder(tmp_path)
    rpcs = [*reward_rpcs(), *transition_rpcs(), *await generation_rpcs(tmp_path), *learner_rpcs()]
    files = (generation_pb2, learner_pb2, reward_pb2, transition_pb2, health_pb2)
    services = [s for file in files for s in file.DESCRIPTOR.services_by_name.values()]
    wanted = {f"{service.full_name}/{m.name}" for service in services for m in service.methods}
    assert {rpc.path for rpc in (*rpcs, *health_rpcs())} == wanted


async def answer_as_a_run_does(learner: Learner) -> None:
    """Whoever waits for a checkpoint or an evaluation gets one."""
    control = learner.control
    while not control.stop_asked:
        control.pause()
        await control.wait_while_paused()
        for checkpoint in control.take_checkpoint_requests():
            if not checkpoint.done():
                checkpoint.set_result("checkpoint-1")
        for evaluation in control.evaluations.take():
            evaluation.deliver(EvaluationResult("", {"eval/turn_1/reward_mean": 0.5}))


async def test_whatever_comes_to_the_learner_is_answered_cleanly() -> None:
    """S17"""
    async with serving() as learner:
        learner.events.append(Note("started"))
        answering = asyncio.create_task(answer_as_a_run_does(learner))
        wrong, grown = await fuzz_all(learner_rpcs(), [learner.address], psutil.Process())
        await answering
        assert wrong == []
        assert grown < GROWTH_BYTES
        assert await is_serving(learner.address, "LearnerService")
