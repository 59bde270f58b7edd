"""An engine as the generation service runs it."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from benchmarks.engines_parts.work import BF16, MODEL, TEXTS, Sampled, pushed
from torch import Tensor

from antiphon.clients.types import LoadedWeights, SamplingParameters
from antiphon.services.common.tensors import tensor_specs
from antiphon.services.generation.choices import EngineName
from antiphon.services.generation.engine import (
    ChangeableEngine,
    ChangedTensor,
    EncodedPrompt,
    EngineRequest,
)
from antiphon.services.generation.serving import GenerationOptions, load_engine


class InService:
    """A contender of `benchmarks.engines_parts.work`."""

    def __init__(self, engine: ChangeableEngine) -> None:
        self._engine = engine
        self._versions = itertools.count(1)

    @classmethod
    async def start(cls, name: EngineName, settings: dict[str, Any]) -> InService:
        """The engine of that name with the model loaded."""
        options = GenerationOptions(model=str(MODEL), engine=name, engine_settings=settings)
        engine = await asyncio.to_thread(load_engine, options)
        assert isinstance(engine, ChangeableEngine)
        engine.start()
        return cls(engine)

    async def sample(self, sampling: SamplingParameters, samples: int, seed: int) -> list[Sampled]:
        """See `Contender.sample`."""
        prompts = []
        for index, text in enumerate(TEXTS):
            seeds = tuple(seed + 10 * index + sample for sample in range(samples))
            prompts.append(EncodedPrompt(self._engine.encode(text, "prompt"), seeds, text))
        asked = EngineRequest(tuple(prompts), sampling, False, lambda _: None)
        got = [completion async for completion in self._engine.generate(asked)]
        got.sort(key=lambda c: (c.prompt_index, c.sample_index))
        return [Sampled(c.prompt_token_ids, c.token_ids, c.logprobs) for c in got]

    async def push(self, weights: dict[str, Tensor]) -> float:
        """See `Contender.push`."""
        return await self._engine.apply(pushed(weights), self._next())

    async def change(self, changes: list[ChangedTensor], after: dict[str, Tensor]) -> float:
        """See `Contender.change`."""
        return await self._engine.change(changes, tensor_specs(after, BF16), self._next())

    async def stop(self) -> None:
        """See `Contender.stop`."""
        await self._engine.stop()

    def _next(self) -> LoadedWeights:
        return LoadedWeights("run", 1, next(self._versions), b"x")
