"""The transformers engine of a tiny model in this process, and eyes on its forwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from prometheus_client import REGISTRY

from antiphon.clients.types import Completion, LoadedWeights, SamplingParameters, TensorDtype
from antiphon.services.common.models import load_model, load_tokenizer
from antiphon.services.common.tensors import tensor_specs, to_bytes, wire_tensors
from antiphon.services.generation.engine import EncodedPrompt, EngineRequest, PushedTensor
from antiphon.services.generation.transformers_engine import TransformersEngine

Folders = Callable[..., Path]
PROMPTS = [(5, 6, 7), (8, 9, 10, 11, 12, 13, 14, 6), (5, 6, 7), (20,)]


def sampling(
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    max_new_tokens: int = 12,
) -> SamplingParameters:
    return SamplingParameters(temperature, top_k, top_p, max_new_tokens)


def request(
    prompts: Sequence[tuple[int, ...]] = PROMPTS,
    samples: int = 6,
    parameters: SamplingParameters | None = None,
    full: bool = False,
    admit: Callable[[LoadedWeights], None] = lambda loaded: None,
) -> EngineRequest:
    encoded = tuple(
        EncodedPrompt(prompt, tuple(1000 * i + s for s in range(samples)))
        for i, prompt in enumerate(prompts)
    )
    return EngineRequest(encoded, parameters or sampling(), full, admit)


def make(folder: Path, **options: Any) -> TransformersEngine:
    model = load_model(folder, dtype=torch.float32)
    return TransformersEngine(model, load_tokenizer(folder), source=str(folder), **options)


@asynccontextmanager
async def running(folder: Path, **options: Any) -> AsyncGenerator[TransformersEngine]:
    engine = make(folder, **options)
    engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def complete(engine: TransformersEngine, work: EngineRequest) -> list[Completion]:
    return [completion async for completion in engine.generate(work)]


def pushed(folder: Path, dtype: TensorDtype = TensorDtype.FLOAT32) -> list[PushedTensor]:
    tensors = wire_tensors(load_model(folder, dtype=torch.float32))
    specs = tensor_specs(tensors, dtype)
    return [PushedTensor(s, memoryview(bytes(to_bytes(tensors[s.name], dtype)))) for s in specs]


V7 = LoadedWeights("run", 1, 7, b"seven")


async def queued(jobs: int) -> None:
    """Returns once that many jobs wait for the engine."""
    async with asyncio.timeout(60):
        while REGISTRY.get_sample_value("antiphon_generation_num_requests_waiting") != jobs:
            await asyncio.sleep(0.002)


class Watched:
    """Notes the rows and tokens of every forward, and holds the one numbered `hold_at`."""

    def __init__(self, engine: TransformersEngine, hold_at: int | None = None) -> None:
        self.shapes: list[tuple[int, int]] = []
        self._hold_at = hold_at
        self._entered = asyncio.Event()
        self._gate = threading.Event()
        self._loop = asyncio.get_running_loop()
        engine.model.register_forward_pre_hook(self._hook, with_kwargs=True)

    def _hook(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        rows, length = kwargs["input_ids"].shape
        self.shapes.append((rows, length))
        if len(self.shapes) - 1 == self._hold_at:
            self._loop.call_soon_threadsafe(self._entered.set)
            assert self._gate.wait(60)

    async def held(self) -> None:
        """Returns once the forward is held."""
        await asyncio.wait_for(self._entered.wait(), 60)

    def release(self) -> None:
        """Lets it go on."""
        self._gate.set()
