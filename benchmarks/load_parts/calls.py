"""Many calls at once, and how each ended."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import grpc
import grpc.aio
from benchmarks.load_parts.services import STALL_SECONDS
from benchmarks.results import require

from antiphon.clients.channel_options import client_options
from antiphon.clients.types import (
    AgentAction,
    GenerateRequest,
    JointAction,
    Phase,
    PromptSamples,
    SamplingParameters,
    Task,
)
from antiphon.clients.wire import (
    completion_from_proto,
    generate_request_to_proto,
    score_request_to_proto,
    score_response_from_proto,
)
from antiphon.v1.generation_pb2_grpc import GenerationServiceStub
from antiphon.v1.reward_pb2_grpc import RewardServiceStub

CHANNELS = 8
DEADLINE = 120.0
TASK = Task("task", {"prompt": "cat"})
ACTION = JointAction("action", "task", 1, Phase.TRAIN, 1, (AgentAction("cat", "red"),) * 2)
REQUEST = GenerateRequest(
    run_id="load",
    incarnation=1,
    agent=0,
    min_weights_version=0,
    prompts=(PromptSamples("cat dog", (1, 2)),),
    sampling=SamplingParameters(1.0, None, None, 8),
)


@dataclass(frozen=True)
class Outcome:
    """How calls of a level ended: counts by code, and the seconds that each took."""

    codes: dict[str, int]
    seconds: tuple[float, ...]

    @property
    def p50(self) -> float:
        """Seconds within which half of the calls were answered."""
        return statistics.median(self.seconds)

    @property
    def p99(self) -> float:
        """Seconds within which all but one in a hundred calls were answered."""
        return percentile(self.seconds, 0.99)


def percentile(seconds: Sequence[float], share: float) -> float:
    """The smallest of the values that a share of all do not exceed."""
    return sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]


async def score(address: str, count: int, size: int = 3) -> Outcome:
    """Score calls, all at once, each with a completion of that many bytes."""
    long = replace(ACTION, actions=(AgentAction("cat", "x" * size), ACTION.actions[1]))
    request = score_request_to_proto("load", [TASK], [long])

    async def one(channel: grpc.aio.Channel) -> None:
        stub = RewardServiceStub(channel)  # type: ignore[no-untyped-call]
        (found,) = score_response_from_proto(await stub.Score(request, timeout=DEADLINE))
        require(found.value == size - 3, f"a score is {found}, wanted {size - 3}")

    return await _at_once(address, count, one)


async def generate(address: str, count: int) -> Outcome:
    """Generate calls, all at once."""
    request = generate_request_to_proto(REQUEST)

    async def one(channel: grpc.aio.Channel) -> None:
        stub = GenerationServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Generate(request, timeout=DEADLINE)
        found = [completion_from_proto(c) async for part in call for c in part.completions]
        samples = {completion.sample_index for completion in found}
        require(samples == {0, 1}, f"completions of samples {samples}, wanted 0 and 1")

    return await _at_once(address, count, one)


async def stop_reading(address: str, others: int) -> tuple[str, Outcome]:
    """A caller that reads nothing of a long answer, and others beside it.

    Returns:
        How the call of the first ended, and those of the others.
    """
    prompts = (PromptSamples("cat dog " * 15, tuple(range(20_000))),)
    many = replace(REQUEST, prompts=prompts, include_full_logprobs=True)
    async with _channel(address) as channel:
        stub = GenerationServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Generate(generate_request_to_proto(many), timeout=DEADLINE)
        await call.wait_for_connection()
        outcome = await generate(address, others)
        await asyncio.sleep(1.5 * STALL_SECONDS)
        try:
            parts = [part async for part in call]
            return f"OK after {len(parts)} messages", outcome
        except grpc.aio.AioRpcError as error:
            return error.code().name, outcome


async def _at_once(
    address: str, count: int, one: Callable[[grpc.aio.Channel], Awaitable[None]]
) -> Outcome:
    codes: Counter[str] = Counter()
    seconds: list[float] = []

    async def timed(channel: grpc.aio.Channel) -> None:
        began = time.perf_counter()
        try:
            await one(channel)
            codes["OK"] += 1
        except grpc.aio.AioRpcError as error:
            codes[error.code().name] += 1
        seconds.append(time.perf_counter() - began)

    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(_channel(address)) for _ in range(CHANNELS)]
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        await asyncio.gather(*(timed(channels[i % CHANNELS]) for i in range(count)))
    return Outcome(dict(codes), tuple(seconds))


def _channel(address: str) -> grpc.aio.Channel:
    # Each has a connection of its own.
    options = [*client_options(), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(address, options=options)
