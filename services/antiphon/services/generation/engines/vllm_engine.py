"""The engine that samples with vLLM, in this process's own instance of it.

Weights are changed in place. They reach vLLM's workers as a folder, best in memory (`/dev/shm`),
and its prefix cache is dropped with every version. A head that shares the embedding's weights is
written as a tensor of its own, since vLLM would leave it as it was.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from torch import Tensor
from vllm import AsyncEngineArgs, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from antiphon.clients.own_thread import in_own_thread
from antiphon.clients.types import (
    Completion,
    EngineCapabilities,
    FieldError,
    LoadedWeights,
    Prompt,
    PushKind,
    SamplingParameters,
    TensorDtype,
    TensorSpec,
)
from antiphon.services.common.errors import ServiceError, StartError
from antiphon.services.common.lora import is_adapter_tensor
from antiphon.services.generation.engine import (
    ChangedTensor,
    EngineInfo,
    EngineRequest,
    PushedTensor,
)
from antiphon.services.generation.engines.model_folders import ModelFolders, adapter_of
from antiphon.services.generation.engines.prefix_cache import drop_prefix_cache
from antiphon.services.generation.engines.samples import (
    Sample,
    Sampled,
    check_top_p,
    completion_of,
    cut_by_top_p,
    side_by_side,
)
from antiphon.services.generation.engines.served_model import ServedModel
from antiphon.services.generation.engines.stored_weights import StoredWeights
from antiphon.services.generation.engines.turns import Turns
from antiphon.services.generation.metrics import GenerationMetrics, generation_metrics

logger = logging.getLogger(__name__)

_WATCH_SECONDS = 0.5
_END_SECONDS = 1.0
"""How long vLLM's processes may take themselves apart. Left to it they take longer than the service
has, and there is nothing in them to keep."""
_LEAST_TEMPERATURE = 0.01
_LIKELIEST = 256


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """What to run.

    Attributes:
        model: Folder or hub name of the model.
        tokenizer: Where its tokenizer is, if not there.
        weights: False begins with weights that must not be sampled, and waits for a push.
        weights_dtype: Number format that starting weights are rounded to.
        dtype: Number format to compute in; None for float32 on CPU and bfloat16 on GPU.
        settings: vLLM's own engine arguments by name, for example `tensor_parallel_size`.
        work_folder: Where versions are written; None for one in memory, where there is such.
        sleep_after: Seconds without work after which vLLM gives up its GPU memory until there is
            some; None for never.
    """

    model: str
    tokenizer: str | None = None
    weights: bool = True
    weights_dtype: TensorDtype = TensorDtype.BFLOAT16
    dtype: TensorDtype | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    work_folder: str | None = None
    sleep_after: float | None = None


class VllmEngine:
    """Samples with vLLM.

    Args:
        llm: Started.
        served: What the service knows of the model.
        stored: The weights as folders; vLLM has those of its present one.
        loaded: What they are; empty where they must not be sampled.
        sleep_after: Seconds without work after which vLLM sleeps; None for never.
        metrics: Where it counts.
    """

    def __init__(
        self,
        llm: AsyncLLM,
        served: ServedModel,
        stored: StoredWeights,
        loaded: LoadedWeights,
        *,
        sleep_after: float | None = None,
        metrics: GenerationMetrics | None = None,
    ) -> None:
        self._llm = llm
        self._served = served
        self._stored = stored
        self.loaded = loaded
        self._adapter: LoRARequest | None = None
        self._adapters = llm.vllm_config.lora_config is not None
        self._numbers = itertools.count(1)
        self._turns = Turns()
        self._sleep_after = sleep_after
        self._wake_once = asyncio.Lock()
        self._asleep = False
        self._watching: asyncio.Task[None] | None = None
        self._last_step = time.monotonic()
        self._metrics = metrics or generation_metrics()
        self._metrics.step_age.set_function(lambda: self.seconds_since_step)
        self._metrics.weights_version.set(0)
        self.tensor_shapes: Mapping[str, tuple[int, ...]] = served.tensor_shapes
        kinds = stored.push_kinds - (set() if self._adapters else {PushKind.ADAPTER})
        self.info = EngineInfo(
            model=served.source,
            engine="vllm",
            vocabulary_size=served.vocabulary_size,
            tokenizer_fingerprint=served.fingerprint,
            context_length=int(llm.vllm_config.model_config.max_model_len),
            end_token_ids=served.end_ids,
            capabilities=EngineCapabilities(
                push_kinds=frozenset(kinds),
                token_ids=True,
                logprobs=True,
                full_logprobs=False,
                # A seed fixes the random numbers; vLLM's batches, and so rounding, vary.
                seeds=False,
                batch_rows=int(llm.vllm_config.scheduler_config.max_num_seqs),
                delta_dtypes=StoredWeights.delta_dtypes,
            ),
        )

    @property
    def base(self) -> tuple[TensorSpec, ...]:
        """The model's own tensors as they are loaded; empty for none."""
        return self._stored.base if self.loaded.digest else ()

    @property
    def seconds_since_step(self) -> float:
        """Age of the last token that arrived while there is work; 0 while idle."""
        return time.monotonic() - self._last_step if self._turns.sampling_now else 0.0

    def check_adapter(self, specs: Sequence[TensorSpec], field: str) -> None:
        """Checks that an adapter fits; see `ServedModel.check_adapter`."""
        self._served.check_adapter(specs, field)
        if specs and not self._adapters:
            raise FieldError(
                field, "an adapter", "none: start the service with --engine-set enable_lora=true"
            )

    def encode(self, prompt: Prompt, field: str) -> tuple[int, ...]:
        """The prompt's token ids; see `Codec.encode`."""
        return self._served.codec.encode(prompt, field)

    def generate(self, request: EngineRequest) -> AsyncGenerator[Completion]:
        """Yields completions as they end; closing the generator frees vLLM's requests."""
        _check_sampling(request.sampling)
        return side_by_side(request, partial(self._complete, request=request), self._metrics)

    async def _complete(self, sample: Sample, request: EngineRequest) -> Completion:
        async with self._turns.sampling():
            if self._turns.sampling_now == 1:
                self._last_step = time.monotonic()
            await self._wake()
            request.admit(self.loaded)
            version = self.loaded.version
            if self._turns.sampling_now == 1:
                self._last_step = time.monotonic()
            outputs = self._llm.generate(
                {"type": "token", "prompt_token_ids": list(sample.prompt.token_ids)},
                self._parameters(sample.seed, request.sampling),
                request_id=f"sample-{next(self._numbers)}",
                lora_request=self._adapter,
            )
            sampled = Sampled(request.sampling, self._served.vocabulary_size)
            try:
                async with aclosing(outputs) as steps:
                    async for step in steps:
                        self._last_step = time.monotonic()
                        _add(sampled, step)
            except EngineDeadError as error:
                raise ServiceError(
                    grpc.StatusCode.UNAVAILABLE,
                    f"vLLM has ended; restart the service, its log says why: {error}",
                ) from error
        return completion_of(sample, sampled, self._served, version)

    def _parameters(self, seed: int, sampling: SamplingParameters) -> SamplingParams:
        signed = seed - (1 << 64) if seed >= 1 << 63 else seed
        return SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k or 0,
            top_p=1.0 if sampling.top_p is None else sampling.top_p,
            # -1 would mean none.
            seed=-2 if signed == -1 else signed,
            max_tokens=sampling.max_new_tokens,
            stop_token_ids=sorted(self._served.end_ids),
            # Where top_p cuts, how many tokens it kept is read from all that top_k left.
            logprobs=sampling.top_k if cut_by_top_p(sampling) else 0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    def own_tensors(self) -> Mapping[str, Tensor]:
        """The model's own tensors as they are loaded, in the wire's number format."""
        return self._stored.own_tensors()

    async def apply(self, tensors: Sequence[PushedTensor], loaded: LoadedWeights) -> float:
        """Loads a push and returns the seconds in which nothing could be sampled."""
        specs = [pushed.spec for pushed in tensors]
        return await self._swap(partial(self._stored.write, tensors, loaded), specs, loaded)

    async def change(
        self, changes: Sequence[ChangedTensor], specs: Sequence[TensorSpec], loaded: LoadedWeights
    ) -> float:
        """Loads a delta and returns the seconds in which nothing could be sampled."""
        write = partial(self._stored.write_changes, changes, loaded)
        return await self._swap(write, specs, loaded)

    async def _swap(
        self, write: Callable[[], Path], specs: Sequence[TensorSpec], loaded: LoadedWeights
    ) -> float:
        async def swap() -> float:
            folder = await in_own_thread(write)
            async with self._turns.swapping():
                began = time.monotonic()
                await self._wake()
                # After a failure in the middle there are no weights to sample.
                self.loaded = LoadedWeights()
                await self._load(folder, own=any(not is_adapter_tensor(s.name) for s in specs))
                self._stored.serves(folder, specs)
                self.loaded = loaded
            self._metrics.weights_version.set(loaded.version)
            return time.monotonic() - began

        return await asyncio.shield(asyncio.ensure_future(swap()))

    async def _load(self, folder: Path, *, own: bool) -> None:
        """Has vLLM take a folder's weights: the model's own where they differ, and its adapter."""
        if own:
            await self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        if self._adapter is not None:
            await self._llm.remove_lora(self._adapter.lora_int_id)
        self._adapter = None
        if (adapter := adapter_of(folder)) is not None:
            request = LoRARequest("antiphon", next(self._numbers), str(adapter))
            await self._llm.add_lora(request)
            self._adapter = request
        await drop_prefix_cache(self._llm.reset_prefix_cache)

    def start(self) -> None:
        """Begins to watch vLLM, which runs already; to be called in the event loop."""
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """Ends this process where vLLM has ended, and sends vLLM to sleep where it is idle."""
        while not self._llm.errored:
            await asyncio.sleep(_WATCH_SECONDS)
            idle = 0.0 if self._turns.sampling_now else time.monotonic() - self._last_step
            if self._sleep_after is not None and not self._asleep and idle > self._sleep_after:
                await self._sleep(idle)
        logger.critical("vLLM has ended, so this service does; its log says why")
        os.kill(os.getpid(), signal.SIGTERM)

    async def _sleep(self, idle: float) -> None:
        async with self._turns.swapping():
            await self._llm.sleep(level=1)  # Weights go to the host's memory, the cache is dropped.
            self._asleep = True
        logger.info("vLLM sleeps after %.0f s without work", idle)

    async def _wake(self) -> None:
        async with self._wake_once:
            if self._asleep:
                await self._llm.wake_up()
                self._asleep = False
                self._last_step = time.monotonic()

    async def stop(self) -> None:
        """Ends vLLM."""
        if self._watching is not None:
            self._watching.cancel()
        handler = self._llm.output_handler
        if handler is not None and not self._turns.sampling_now:
            handler.cancel()  # It would log the end that is wanted as an error.
        await asyncio.to_thread(self._llm.shutdown, _END_SECONDS)
        self._stored.folders.close()


def load_vllm(options: VllmOptions) -> VllmEngine:
    """The engine with vLLM up. Blocks.

    Raises:
        StartError: vLLM does not start.
    """
    served = ServedModel(options.model, options.tokenizer)
    work = Path(options.work_folder) if options.work_folder else None
    stored = StoredWeights(ModelFolders(work, served, untied=True, in_memory=True))
    loaded = stored.start(options.model, options.weights_dtype, weights=options.weights)
    arguments: dict[str, Any] = {
        "model": str(stored.folder),
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": _LIKELIEST,
        # The model's own sampling settings are not applied.
        "generation_config": "vllm",
        "enable_prefix_caching": True,
        "dtype": options.dtype.value if options.dtype is not None else _own_dtype(),
        "enable_sleep_mode": options.sleep_after is not None,
        **options.settings,
    }
    try:
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
    except (TypeError, ValueError, RuntimeError, OSError) as error:
        given = ", ".join(f"{name}={value}" for name, value in options.settings.items()) or "none"
        raise StartError(
            f"vLLM does not start on {options.model} (--engine-set: {given}): {error}"
        ) from error
    return VllmEngine(llm, served, stored, loaded, sleep_after=options.sleep_after)


def _own_dtype() -> str:
    from vllm.platforms import current_platform

    return "float32" if current_platform.is_cpu() else "bfloat16"


def _add(sampled: Sampled, step: RequestOutput) -> None:
    """Adds the tokens of a step."""
    output = step.outputs[0]
    told = output.logprobs
    for place, token in enumerate(output.token_ids):
        # The first is the sampled token's, then those of the likeliest tokens.
        logprob, *others = told.logprobs[told.start_indices[place] : told.end_indices[place]]
        sampled.add(token, logprob, sum(other > -float("inf") for other in others))


def _check_sampling(sampling: SamplingParameters) -> None:
    """Refuses what vLLM would sample otherwise than it is asked, or not tell all of.

    Raises:
        FieldError: Naming the parameter.
    """
    if 0 < sampling.temperature < _LEAST_TEMPERATURE:
        raise FieldError(
            "sampling.temperature",
            sampling.temperature,
            f"at least {_LEAST_TEMPERATURE}, which vLLM would take instead; or 0 for greedy",
        )
    check_top_p(sampling, _LIKELIEST, "among so many of the likeliest tokens is told what it kept")
