"""An engine that sleeps for every token: the time of sampling without its work.

It behaves as the product's engine does: one request or swap after another in order of arrival,
rows in batches of at most so many, a completion answered as soon as it ends. All rows of a batch
get a token every `token_seconds`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from antiphon.clients.digest import weights_digest
from antiphon.clients.types import (
    Completion,
    EngineCapabilities,
    FinishReason,
    LoadedWeights,
    Prompt,
    PushKind,
    TensorDtype,
    TensorSpec,
    WeightsSpan,
)
from antiphon.services.common.models import load_model, load_tokenizer, tokenizer_fingerprint
from antiphon.services.common.tensors import from_bytes, tensor_shapes, tensor_specs, wire_tensors
from antiphon.services.generation.codec import Codec
from antiphon.services.generation.engine import (
    ChangedTensor,
    EngineInfo,
    EngineRequest,
    PushedTensor,
)

CONTEXT = 1 << 20


@dataclass(frozen=True)
class Pace:
    """How fast an engine is.

    Attributes:
        token_seconds: Seconds per token of a batch.
        rows: Most rows of a batch.
        shortest: The shortest completion, as a share of `max_new_tokens`; lengths are spread
            evenly between it and `max_new_tokens`, by seed.
    """

    token_seconds: float
    rows: int = 64
    shortest: float = 1.0


@dataclass(eq=False)
class _Request:
    work: EngineRequest
    events: asyncio.Queue[Completion | BaseException | None] = field(default_factory=asyncio.Queue)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class _Swap:
    loaded: LoadedWeights
    specs: tuple[TensorSpec, ...]
    done: asyncio.Future[float] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


@dataclass(eq=False)
class _Row:
    prompt_index: int
    sample_index: int
    prompt: tuple[int, ...]
    seed: int
    length: int
    spans: list[WeightsSpan] = field(default_factory=list)


class SimulatedEngine:
    """Serves the tokenizer and the tensors of a model in a folder; what it is pushed is taken.

    Args:
        folder: The model's.
        pace: How fast it is.
        on_swap: As of the product's engine.
    """

    def __init__(
        self, folder: Path, pace: Pace, on_swap: Literal["finish", "continue"] = "finish"
    ) -> None:
        tokenizer = load_tokenizer(folder)
        tensors = wire_tensors(load_model(folder, dtype=torch.float32))
        self._codec = Codec(tokenizer, len(tokenizer))
        self._pace = pace
        self._on_swap = on_swap
        self.info = EngineInfo(
            model=str(folder),
            engine="simulated",
            vocabulary_size=len(tokenizer),
            tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
            context_length=CONTEXT,
            end_token_ids=(tokenizer.eos_token_id,),
            capabilities=EngineCapabilities(
                push_kinds=frozenset({PushKind.FULL, PushKind.DELTA}),
                token_ids=True,
                logprobs=True,
                full_logprobs=False,
                seeds=True,
                batch_rows=pace.rows,
            ),
        )
        self.tensor_shapes: Mapping[str, tuple[int, ...]] = tensor_shapes(tensors)
        self.base = tensor_specs(tensors, TensorDtype.BFLOAT16)
        self.loaded = LoadedWeights(digest=weights_digest(self.base))
        self._weights = {
            name: tensor.detach().to(torch.bfloat16, copy=True) for name, tensor in tensors.items()
        }
        self.seconds_since_step = 0.0
        self._jobs: asyncio.Queue[_Request | _Swap] = asyncio.Queue()
        self._swaps: list[_Swap] = []
        self._pushed = asyncio.Event()

    def check_adapter(self, specs: Sequence[TensorSpec], field: str) -> None:
        """Takes none."""

    def encode(self, prompt: Prompt, field: str) -> tuple[int, ...]:
        """Token ids of a prompt."""
        return self._codec.encode(prompt, field)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Completion]:
        """Yields completions when they would end."""
        job = _Request(request)
        self._jobs.put_nowait(job)
        try:
            while (event := await job.events.get()) is not None:
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            job.cancelled.set()

    async def apply(self, tensors: Sequence[PushedTensor], loaded: LoadedWeights) -> float:
        """Takes the weights as the engine would: in turn, or between two tokens."""
        for pushed in tensors:
            spec = pushed.spec
            self._weights[spec.name] = from_bytes(bytes(pushed.data), spec.dtype, spec.shape)
        return await self._swap(_Swap(loaded, tuple(pushed.spec for pushed in tensors)))

    def own_tensors(self) -> Mapping[str, torch.Tensor]:
        """The tensors as they were pushed."""
        return self._weights

    async def change(
        self, changes: Sequence[ChangedTensor], specs: Sequence[TensorSpec], loaded: LoadedWeights
    ) -> float:
        """Takes a delta."""
        for changed in changes:
            self._weights[changed.spec.name].view(-1)[changed.positions] = changed.values
        return await self._swap(_Swap(loaded, tuple(specs)))

    async def _swap(self, swap: _Swap) -> float:
        self._swaps.append(swap)
        self._jobs.put_nowait(swap)
        self._pushed.set()
        return await asyncio.shield(swap.done)

    def start(self) -> None:
        """Starts to work."""
        self._worker = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Drops all work."""
        self._worker.cancel()
        await asyncio.gather(self._worker, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            job = await self._jobs.get()
            if isinstance(job, _Swap):
                self._take(job)
                continue
            try:
                await self._sample(job)
                job.events.put_nowait(None)
            except Exception as error:  # noqa: BLE001 - whoever asked is told
                job.events.put_nowait(error)

    def _take(self, swap: _Swap) -> None:
        if swap.done.done():
            return
        self._swaps.remove(swap)
        self._pushed.clear()
        self.loaded, self.base = swap.loaded, swap.specs
        swap.done.set_result(0.0)

    async def _sample(self, job: _Request) -> None:
        work = job.work
        rows = [
            _Row(index, sample, prompt.token_ids, seed, self._length(seed, work))
            for index, prompt in enumerate(work.prompts)
            for sample, seed in enumerate(prompt.seeds)
        ]
        for start in range(0, len(rows), self._pace.rows):
            if job.cancelled.is_set():
                return
            work.admit(self.loaded)
            await self._batch(job, rows[start : start + self._pace.rows])

    async def _batch(self, job: _Request, rows: Sequence[_Row]) -> None:
        loop = asyncio.get_running_loop()
        began, token = loop.time(), self._pace.token_seconds
        for row in rows:
            row.spans = [WeightsSpan(0, self.loaded.version)]
        left = sorted(rows, key=lambda row: row.length)
        while left and not job.cancelled.is_set():
            await self._until(began + left[0].length * token, job)
            for swap in self._swaps[:] if self._on_swap == "continue" else ():
                self._take(swap)
                job.work.admit(self.loaded)
                position = int((loop.time() - began) / token)
                for row in left:
                    if position < row.length:
                        if row.spans[-1].start == position:
                            row.spans.pop()
                        row.spans.append(WeightsSpan(position, self.loaded.version))
            while left and began + left[0].length * token <= loop.time():
                job.events.put_nowait(self._completion(left.pop(0)))

    async def _until(self, when: float, job: _Request) -> None:
        """Sleep until then, or until the request is dropped or weights come that do not wait."""
        events = [job.cancelled] + ([self._pushed] if self._on_swap == "continue" else [])
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        timeout = max(0.0, when - asyncio.get_running_loop().time())
        try:
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _length(self, seed: int, work: EngineRequest) -> int:
        longest = work.sampling.max_new_tokens
        shortest = max(1, round(longest * self._pace.shortest))
        return random.Random(seed).randint(shortest, longest)

    def _completion(self, row: _Row) -> Completion:
        draw = random.Random(row.seed)
        ids = tuple(draw.choices(range(5, self.info.vocabulary_size), k=row.length))
        return Completion(
            prompt_index=row.prompt_index,
            sample_index=row.sample_index,
            text=f"completion {row.seed}",
            token_ids=ids,
            logprobs=(-3.0,) * row.length,
            kept_sizes=(self.info.vocabulary_size,) * row.length,
            finish_reason=FinishReason.LENGTH,
            prompt_token_ids=row.prompt,
            weights_spans=tuple(row.spans),
            instance_id="",
            boot_id="",
        )
