"""The generation service in domain types: an engine, who may use it, and its weights."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace

from antiphon.clients.types import (
    Completion,
    FieldError,
    GenerateRequest,
    LoadedWeights,
    ModelInfo,
    PushResult,
    PushStatus,
)
from antiphon.clients.wire import PushQuery
from antiphon.services.common.weights_store import WeightsStore
from antiphon.services.generation.binding import Binding, check_sampling
from antiphon.services.generation.engine import EncodedPrompt, Engine, EngineRequest
from antiphon.services.generation.metrics import GenerationMetrics, generation_metrics
from antiphon.services.generation.weights_receiver import Part, WeightsReceiver


class GenerationService:
    """What the RPCs of `GenerationService` do.

    Args:
        engine: Started by the caller.
        instance_id: Of this replica.
        boot_id: Of this process.
        agent: The agent served; None takes that of the first call.
        run_lease_seconds: How long a silent run keeps the service from others.
        clock: Seconds that only grow.
        metrics: Where it says whom it plays.
        store: Shared with the learner, to read pushes from; None for none.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        instance_id: str,
        boot_id: str,
        agent: int | None = None,
        run_lease_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        metrics: GenerationMetrics | None = None,
        store: WeightsStore | None = None,
    ) -> None:
        self._reads_store = store is not None
        self._engine = engine
        self._instance_id = instance_id
        self._boot_id = boot_id
        self._binding = Binding(
            lease_seconds=run_lease_seconds, clock=clock, agent=agent, boot_id=boot_id
        )
        self._receiver = WeightsReceiver(
            engine, self._binding, instance_id=instance_id, boot_id=boot_id, store=store
        )
        self._metrics = metrics or generation_metrics()
        self._tell_agent()

    async def generate(
        self, request: GenerateRequest, *, timeout: float | None = None
    ) -> AsyncGenerator[Completion]:
        """Yields completions as they end.

        Args:
            request: What is asked.
            timeout: Seconds until the caller gives up; None for never.

        Raises:
            FieldError: A prompt does not fit the vocabulary or the context.
            ServiceError: With the reasons of `Binding.admit_generate`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        prompts = await asyncio.to_thread(self._encode, request)

        def admit(loaded: LoadedWeights) -> None:
            check_sampling(
                loaded,
                run_id=request.run_id,
                incarnation=request.incarnation,
                min_version=request.min_weights_version,
                boot_id=self._boot_id,
            )

        self._binding.admit_generate(
            self._engine.loaded,
            run_id=request.run_id,
            incarnation=request.incarnation,
            agent=request.agent,
            min_version=request.min_weights_version,
        )
        self._tell_agent()
        work = EngineRequest(
            prompts, request.sampling, request.include_full_logprobs, admit, deadline
        )
        with self._binding.call(request.run_id):
            async with aclosing(self._engine.generate(work)) as completions:
                async for completion in completions:
                    yield replace(completion, instance_id=self._instance_id, boot_id=self._boot_id)

    async def push_weights(self, parts: AsyncIterator[Part]) -> PushResult:
        """Takes a push; see `WeightsReceiver.push`."""
        try:
            return await self._receiver.push(parts)
        finally:
            self._tell_agent()

    def push_status(self, query: PushQuery) -> PushStatus:
        """How far a push has come; whoever asks still drives the run."""
        self._binding.renew(query.run_id, query.incarnation)
        return self._receiver.status(query)

    def model_info(self) -> ModelInfo:
        """What runs here and what is loaded."""
        info = self._engine.info
        return ModelInfo(
            model=info.model,
            engine=info.engine,
            vocabulary_size=info.vocabulary_size,
            tokenizer_fingerprint=info.tokenizer_fingerprint,
            context_length=info.context_length,
            end_token_ids=info.end_token_ids,
            loaded=self._engine.loaded,
            bound_run_id=self._binding.run_id,
            bound_incarnation=self._binding.incarnation,
            instance_id=self._instance_id,
            boot_id=self._boot_id,
            capabilities=info.capabilities,
            max_prompt_tokens=info.max_prompt_tokens,
            reads_store=self._reads_store,
        )

    def _tell_agent(self) -> None:
        info = self._engine.info
        self._metrics.tell_info(self._binding.agent, info.model, info.engine)

    def _encode(self, request: GenerateRequest) -> tuple[EncodedPrompt, ...]:
        limit, new = self._engine.info.context_length, request.sampling.max_new_tokens
        encoded = []
        for index, entry in enumerate(request.prompts):
            ids = self._engine.encode(entry.prompt, f"prompts[{index}].prompt")
            if len(ids) + new > limit:
                raise FieldError(
                    f"prompts[{index}]",
                    f"{len(ids)} tokens and max_new_tokens {new}",
                    f"at most {limit} together, the context length; shorten the prompt or ask "
                    "for fewer new tokens",
                )
            encoded.append(EncodedPrompt(ids, entry.seeds, entry.prompt))
        return tuple(encoded)
