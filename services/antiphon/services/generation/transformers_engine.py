"""The engine that runs a Hugging Face model with a decode loop of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from antiphon.clients.digest import weights_digest
from antiphon.clients.types import (
    Completion,
    EngineCapabilities,
    LoadedWeights,
    Prompt,
    PushKind,
    TensorDtype,
    TensorSpec,
)
from antiphon.services.common.lora import Adapter, check_adapter, is_adapter_tensor
from antiphon.services.common.memory import give_back_freed_memory
from antiphon.services.common.models import (
    context_length,
    end_token_ids,
    tokenizer_fingerprint,
)
from antiphon.services.common.tensors import (
    from_bytes,
    tensor_shapes,
    tensor_specs,
    to_bytes,
    wire_tensors,
)
from antiphon.services.generation.batch import Batch, Row
from antiphon.services.generation.choices import OnSwap
from antiphon.services.generation.codec import Codec
from antiphon.services.generation.decoder import Decoder
from antiphon.services.generation.engine import (
    ChangedTensor,
    EngineInfo,
    EngineRequest,
    PushedTensor,
)
from antiphon.services.generation.engine_thread import EngineThread
from antiphon.services.generation.few_rows import multiply_few_rows_fast
from antiphon.services.generation.jobs import Generation, Swap
from antiphon.services.generation.metrics import GenerationMetrics, generation_metrics
from antiphon.services.generation.new_weights import NewWeights

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_STOP_SECONDS = 2.0


class TransformersEngine:
    """Samples from a causal language model of `transformers`.

    Args:
        model: On its device and in the number format that it computes in.
        tokenizer: Its tokenizer.
        source: What it was loaded from, for `GetModelInfo`.
        weights: False where the model holds no weights yet and waits for a push.
        weights_dtype: The starting weights are rounded to it, and their digest is of tensors in
            it, as if they had been pushed.
        max_batch_size: Most rows that are decoded together; larger requests run in several batches.
        on_swap: Whether completions under way finish before new weights are swapped in, or go on
            under them.
        metrics: Where it counts.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        source: str,
        weights: bool = True,
        weights_dtype: TensorDtype = TensorDtype.BFLOAT16,
        max_batch_size: int = 64,
        on_swap: OnSwap = "finish",
        metrics: GenerationMetrics | None = None,
    ) -> None:
        self.model = model
        self._end_ids = frozenset(end_token_ids(model, tokenizer))
        self._max_batch_size = max_batch_size
        self._on_swap = on_swap
        self._metrics = metrics or generation_metrics()
        self._thread = EngineThread(on_idle=give_back_freed_memory)
        head = model.get_output_embeddings()
        config = model.config.get_text_config()
        vocabulary_size = int(config.vocab_size if head is None else head.weight.shape[0])
        self._codec = Codec(tokenizer, vocabulary_size, context_length(model.config))
        tensors = wire_tensors(model)
        self.info = EngineInfo(
            model=source,
            engine="transformers",
            vocabulary_size=vocabulary_size,
            tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
            context_length=context_length(model.config),
            end_token_ids=tuple(sorted(self._end_ids)),
            capabilities=EngineCapabilities(
                push_kinds=frozenset({PushKind.FULL, PushKind.DELTA, PushKind.ADAPTER}),
                token_ids=True,
                logprobs=True,
                full_logprobs=True,
                seeds=True,
                batch_rows=max_batch_size,
                delta_dtypes=_kept_whole(tensors.values()),
            ),
        )
        self.tensor_shapes: Mapping[str, tuple[int, ...]] = tensor_shapes(tensors)
        self._adapter = Adapter(model)
        self.base: tuple[TensorSpec, ...] = ()
        self.loaded = LoadedWeights()
        if weights:
            self._round(weights_dtype)
            self.base = tensor_specs(tensors, weights_dtype)
            self.loaded = LoadedWeights(digest=weights_digest(self.base))
        multiply_few_rows_fast(model)
        self._decoder = Decoder(model, self._thread.stepped)
        self._metrics.step_age.set_function(lambda: self._thread.seconds_since_step)
        self._metrics.requests_waiting.set_function(lambda: float(self._thread.waiting))
        self._metrics.weights_version.set(0)

    def _round(self, dtype: TensorDtype) -> None:
        for tensor in wire_tensors(self.model).values():
            rounded = from_bytes(to_bytes(tensor, dtype), dtype, tuple(tensor.shape))
            with torch.no_grad():
                tensor.copy_(rounded)

    @property
    def seconds_since_step(self) -> float:
        """Age of the last forward, batch or swap while there is work; 0 while idle."""
        return self._thread.seconds_since_step

    def start(self) -> None:
        """Starts the engine's thread."""
        self._thread.start()

    async def stop(self) -> None:
        """Drops all work and ends the engine's thread."""
        await asyncio.to_thread(self._thread.stop, _STOP_SECONDS)

    def encode(self, prompt: Prompt, field: str) -> tuple[int, ...]:
        """The prompt's token ids; see `Codec.encode`."""
        return self._codec.encode(prompt, field)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Completion]:
        """Yields completions as they end; closing the generator frees the request's rows."""
        job = Generation(request, self._run_generation)
        self._thread.put(job)
        result = "cancelled"
        try:
            while (event := await job.events.get()) is not None:
                if isinstance(event, BaseException):
                    result = "failed"
                    raise event
                yield event
            result = "finished"
        finally:
            job.cancelled.set()
            self._metrics.requests.labels(result).inc()
            self._metrics.end_to_end.observe(time.perf_counter() - job.submitted)

    async def apply(self, tensors: Sequence[PushedTensor], loaded: LoadedWeights) -> float:
        """Makes new weights ready, swaps and returns the pause in seconds once it is done."""
        return await asyncio.shield(asyncio.ensure_future(self._apply(tensors, loaded)))

    async def _apply(self, tensors: Sequence[PushedTensor], loaded: LoadedWeights) -> float:
        return await self._swapped(await asyncio.to_thread(self._replacement, tensors, loaded))

    def own_tensors(self) -> Mapping[str, Tensor]:
        """The model's own tensors as they are loaded, until the next swap."""
        return wire_tensors(self.model)

    async def change(
        self, changes: Sequence[ChangedTensor], specs: Sequence[TensorSpec], loaded: LoadedWeights
    ) -> float:
        """Queues a change of single elements and returns the pause once it is done."""
        return await self._swapped(partial(self._change, changes, specs, loaded))

    async def _swapped(self, work: Callable[[], None]) -> float:
        job = Swap(work)
        self._thread.put(job)
        return await asyncio.shield(job.done)

    def check_adapter(self, specs: Sequence[TensorSpec], field: str) -> None:
        """Checks that an adapter fits the model; see `lora.check_adapter`."""
        check_adapter(self.model, ((spec.name, spec.shape) for spec in specs), field)

    def _replacement(
        self, pushed_tensors: Sequence[PushedTensor], loaded: LoadedWeights
    ) -> Callable[[], None]:
        """Makes whole tensors ready beside those that sample, to be put in between two steps."""
        own: dict[str, Tensor] = {}
        adapter: dict[str, Tensor] = {}
        for pushed in pushed_tensors:
            tensors = adapter if is_adapter_tensor(pushed.spec.name) else own
            tensors[pushed.spec.name] = from_bytes(
                pushed.data, pushed.spec.dtype, pushed.spec.shape
            )
        # Before anything is written: what is refused leaves weights and adapter as they were.
        check_adapter(self.model, tensor_shapes(adapter).items(), "tensors")
        specs = tuple(p.spec for p in pushed_tensors if p.spec.name in own)
        new = NewWeights(self.model, own) if own else None

        def replace() -> None:
            with self._becoming(self.base if new is None else specs, loaded):
                if new is not None:
                    new.put_in()
                self._adapter.replace(adapter)

        return replace

    def _change(
        self, changes: Sequence[ChangedTensor], specs: Sequence[TensorSpec], loaded: LoadedWeights
    ) -> None:
        """Overwrites single elements; runs in the engine's thread between steps."""
        targets = wire_tensors(self.model)
        with self._becoming(tuple(specs), loaded), torch.no_grad():
            for change in changes:
                target = targets[change.spec.name]
                positions = change.positions.to(target.device)
                values = change.values.to(target.device, target.dtype)
                target.put_(positions, values)

    @contextmanager
    def _becoming(self, base: tuple[TensorSpec, ...], loaded: LoadedWeights) -> Iterator[None]:
        """Says what is loaded once weights are written.

        A failure in its middle leaves weights that must not sample: the engine then has none.
        """
        try:
            yield
        except BaseException:
            self.loaded, self.base = LoadedWeights(), ()
            raise
        self.base, self.loaded = base, loaded
        self._metrics.weights_version.set(loaded.version)

    def _run_generation(self, job: Generation) -> None:
        """Decodes a request's rows; runs in the engine's thread."""
        request, metrics = job.request, self._metrics
        metrics.queue.observe(time.perf_counter() - job.submitted)
        if job.cancelled.is_set():
            return
        request.admit(self.loaded)
        batch = Batch(
            self._decoder,
            [
                Row(prompt_index, sample_index, prompt.token_ids, seed)
                for prompt_index, prompt in enumerate(request.prompts)
                for sample_index, seed in enumerate(prompt.seeds)
            ],
            request.sampling,
            self._end_ids,
            full=request.include_full_logprobs,
            size=self._max_batch_size,
        )
        with (
            metrics.requests_running.track_inprogress(),
            metrics.decode.time(),
            metrics.cached(batch),
        ):
            self._decode(job, batch)

    def _decode(self, job: Generation, batch: Batch) -> None:
        sampled_at: float | None = None
        while batch.unfinished:
            if self._thread.closing:
                raise RuntimeError("the engine has stopped")
            if job.cancelled.is_set():
                return
            if batch.rows_are_due:
                self._admit_rows(batch)
            self._metrics.generation_tokens.inc(len(batch.rows))
            if ended := batch.sample():
                job.post(*map(self._completion, ended))
            sampled_at = self._tell_step(job, sampled_at)
            swap = self._thread.take(Swap) if self._on_swap == "continue" else None
            if batch.rows and swap is None:
                batch.advance()
            self._thread.stepped()
            if swap is not None:
                self._swap_within(job, batch, swap)

    def _admit_rows(self, batch: Batch) -> None:
        """Lets waiting rows join the batch under the present weights."""
        metrics, held = self._metrics, len(batch.rows)
        with metrics.prefill.time():
            computed = batch.admit(self.loaded.version)
        asked = sum(len(row.prompt) for row in batch.rows[held:])
        metrics.batch_size.observe(len(batch.rows))
        metrics.prompt_tokens.inc(computed)
        metrics.prefix_queries.inc(asked)
        metrics.prefix_hits.inc(asked - computed)
        self._thread.stepped()

    def _tell_step(self, job: Generation, before: float | None) -> float:
        """Measures a step from the batch's last one, or from the arrival of its request."""
        now = time.perf_counter()
        if before is not None:
            self._metrics.between_tokens.observe(now - before)
        elif not job.sampled:
            job.sampled = True
            self._metrics.first_token.observe(now - job.submitted)
        return now

    def _swap_within(self, job: Generation, batch: Batch, swap: Swap) -> None:
        """Swaps between two steps and computes the batch's cache anew under the new weights."""
        began = time.perf_counter()
        try:
            swap.work()
        except BaseException as error:
            swap.fail(error)
            raise
        try:
            if batch.unfinished:
                job.request.admit(self.loaded)
                batch.restart(self.loaded.version)
        finally:
            swap.succeed(time.perf_counter() - began)
        self._thread.stepped()

    def _completion(self, row: Row) -> Completion:
        assert row.finish_reason is not None
        self._metrics.completions.labels(row.finish_reason.value).inc()
        self._metrics.completion_tokens.observe(len(row.token_ids))
        return Completion(
            prompt_index=row.prompt_index,
            sample_index=row.sample_index,
            text=self._codec.decode(row.token_ids),
            token_ids=tuple(row.token_ids),
            logprobs=tuple(row.logprobs),
            kept_sizes=tuple(row.kept_sizes),
            finish_reason=row.finish_reason,
            prompt_token_ids=row.prompt,
            weights_spans=tuple(row.spans),
            instance_id="",
            boot_id="",
            full_logprobs=tuple(row.full_logprobs),
            full_logprobs_temperature_1=tuple(row.full_logprobs_temperature_1),
        )


def _kept_whole(tensors: Iterable[Tensor]) -> frozenset[TensorDtype]:
    """The number formats on the wire that these tensors keep every bit of."""
    if all(tensor.dtype is torch.float32 for tensor in tensors):
        return frozenset(TensorDtype)
    return frozenset({TensorDtype.BFLOAT16})
