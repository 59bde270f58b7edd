"""A generation service on a free port with its engine within reach, and pushes for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import torch

from antiphon.clients.client_stream import send_stream
from antiphon.clients.digest import weights_digest
from antiphon.clients.errors import CallError, from_rpc_error
from antiphon.clients.generation import GenerationClient
from antiphon.clients.push import push_messages
from antiphon.clients.retry import RetryPolicy
from antiphon.clients.types import (
    Completion,
    GenerateRequest,
    Prompt,
    PromptSamples,
    PushHeader,
    PushKind,
    PushResult,
    SamplingParameters,
    TensorDtype,
    TokenIds,
)
from antiphon.clients.wire import push_result_from_proto
from antiphon.services.common.models import load_model
from antiphon.services.common.server import Server, ServerSettings
from antiphon.services.common.tensors import tensor_specs, to_bytes, wire_tensors
from antiphon.services.common.weights_store import WeightsStore
from antiphon.services.generation.serving import GenerationOptions, generation_server, load_engine
from antiphon.services.generation.transformers_engine import TransformersEngine
from antiphon.v1 import generation_pb2 as pb
from antiphon.v1.generation_pb2_grpc import GenerationServiceStub

TIMEOUT = 60.0
ONCE = RetryPolicy(attempts=1)
IDS = TokenIds((5, 6, 7))


@dataclass
class Push:
    """The weights of one model folder, ready to be sent."""

    header: PushHeader
    tensors: list[memoryview]

    def read(self, index: int) -> memoryview:
        return self.tensors[index]

    @property
    def nbytes(self) -> int:
        return sum(spec.nbytes for spec in self.header.tensors)


def push_of(
    folder: Path,
    version: int,
    *,
    run: str = "run",
    incarnation: int = 1,
    dtype: TensorDtype = TensorDtype.FLOAT32,
    kind: PushKind = PushKind.FULL,
    **changes: Any,
) -> Push:
    tensors = wire_tensors(load_model(folder, dtype=torch.float32))
    specs = tensor_specs(tensors, dtype)
    header = PushHeader(run, incarnation, 0, version, weights_digest(specs), kind, specs)
    data = [memoryview(bytes(to_bytes(tensors[spec.name], dtype))) for spec in specs]
    return Push(replace(header, **changes), data)


@dataclass
class Replica:
    """One running service and a client of it."""

    server: Server
    engine: TransformersEngine
    client: GenerationClient
    stub: GenerationServiceStub

    async def generate(
        self,
        *prompts: Prompt,
        samples: int = 1,
        version: int = 0,
        temperature: float = 0.0,
        max_new_tokens: int = 8,
        **changes: Any,
    ) -> list[Completion]:
        asked = request(
            *prompts,
            samples=samples,
            version=version,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            **changes,
        )
        return [c async for c in self.client.generate(asked, timeout=TIMEOUT)]

    async def push(self, push: Push, timeout: float = TIMEOUT, **options: Any) -> PushResult:
        return await self.client.push_weights(push.header, push.read, timeout=timeout, **options)

    async def send(
        self, messages: Sequence[pb.PushWeightsRequest], timeout: float = TIMEOUT
    ) -> PushResult:
        """One stream of just these messages, without retries."""
        try:
            sent = send_stream(self.stub.PushWeights, _each(messages), timeout=timeout, metadata=())
            return push_result_from_proto(await sent)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, address=self.server.address, rpc="PushWeights") from error

    @property
    def version(self) -> int:
        return self.engine.loaded.version


async def _each(messages: Sequence[pb.PushWeightsRequest]) -> AsyncGenerator[Any]:
    for message in messages:
        yield message


def request(
    *prompts: Prompt,
    samples: int = 1,
    version: int = 0,
    temperature: float = 1.0,
    max_new_tokens: int = 8,
    run: str = "run",
    incarnation: int = 1,
    agent: int = 0,
    full: bool = False,
) -> GenerateRequest:
    entries = tuple(
        PromptSamples(prompt, tuple(100 * i + s for s in range(samples)))
        for i, prompt in enumerate(prompts or (IDS,))
    )
    sampling = SamplingParameters(temperature, None, None, max_new_tokens)
    return GenerateRequest(run, incarnation, agent, version, entries, sampling, full)


@asynccontextmanager
async def replica(
    folder: Path,
    *,
    listens: Mapping[str, Any] | None = None,
    store: WeightsStore | None = None,
    **options: Any,
) -> AsyncGenerator[Replica]:
    """A service of the model in `folder` until the block ends; `listens` are server settings."""
    asked = GenerationOptions(model=str(folder), device="cpu", **options)
    engine = await asyncio.to_thread(load_engine, asked)
    server = generation_server(
        ServerSettings(**{"metrics_port": 0, "grace_seconds": 5, **(listens or {})}),
        engine,
        agent=asked.agent,
        run_lease_seconds=asked.run_lease_seconds,
        store=store,
    )
    engine.start()
    await server.start()
    client = GenerationClient(server.address, retry=ONCE)
    channel = grpc.aio.insecure_channel(server.address)
    try:
        yield Replica(server, engine, client, GenerationServiceStub(channel))
    finally:
        await client.close()
        await channel.close()
        await server.stop(0)
        await engine.stop()


async def messages_of(
    push: Push, received: Sequence[int] = (), chunk_bytes: int = 1 << 20
) -> list[pb.PushWeightsRequest]:
    sent = [m async for m in push_messages(push.header, push.read, received, chunk_bytes)]
    return [pb.PushWeightsRequest.FromString(message) for message in sent]


def refusal(caught: Any) -> tuple[grpc.StatusCode, str]:
    error = caught.value
    assert isinstance(error, CallError)
    return error.code, error.reason


class Hold:
    """Holds an engine inside of its next forward."""

    def __init__(self, engine: TransformersEngine) -> None:
        self.forwards = 0
        self._entered = asyncio.Event()
        self._gate = threading.Event()
        self._loop = asyncio.get_running_loop()
        engine.model.register_forward_pre_hook(self._hook)

    def _hook(self, *_: Any) -> None:
        self.forwards += 1
        self._loop.call_soon_threadsafe(self._entered.set)
        assert self._gate.wait(TIMEOUT)

    async def entered(self) -> None:
        await asyncio.wait_for(self._entered.wait(), TIMEOUT)

    def release(self) -> None:
        self._gate.set()
