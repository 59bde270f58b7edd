"""Samples of a request that are asked of another program one by one, side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

import grpc

from antiphon.clients.types import Completion, FinishReason, WeightsSpan
from antiphon.services.common.errors import ServiceError
from antiphon.services.generation.codec import Codec
from antiphon.services.generation.engine import EncodedPrompt, EngineRequest
from antiphon.services.generation.metrics import GenerationMetrics


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion that is wanted."""

    prompt_index: int
    sample_index: int
    prompt: EncodedPrompt
    seed: int

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"prompts[{self.prompt_index}] sample {self.sample_index}"


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the program sampled: ids, and of each its log-probability and the kept set's size."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    kept_sizes: list[int] = field(default_factory=list)


class SampleFailedError(ServiceError):
    """One completion failed while the others need not; asked again, it may succeed."""

    def __init__(self, sample: Sample, problem: str) -> None:
        super().__init__(grpc.StatusCode.ABORTED, f"{sample.name}: {problem}")


def completion_of(
    sample: Sample,
    sampled: Sampled,
    *,
    codec: Codec,
    end_ids: frozenset[int],
    weights_version: int,
) -> Completion:
    """The completion up to its first end token, whether the program stopped there or not."""
    ends = [i for i, token in enumerate(sampled.token_ids) if token in end_ids]
    count = ends[0] + 1 if ends else len(sampled.token_ids)
    ids = tuple(sampled.token_ids[:count])
    return Completion(
        prompt_index=sample.prompt_index,
        sample_index=sample.sample_index,
        text=codec.decode(ids),
        token_ids=ids,
        logprobs=tuple(sampled.logprobs[:count]),
        kept_sizes=tuple(sampled.kept_sizes[:count]),
        finish_reason=FinishReason.END_TOKEN if ends else FinishReason.LENGTH,
        prompt_token_ids=sample.prompt.token_ids,
        weights_spans=(WeightsSpan(0, weights_version),),
        instance_id="",
        boot_id="",
    )


async def side_by_side(
    request: EngineRequest,
    complete: Callable[[Sample], Awaitable[Completion]],
    metrics: GenerationMetrics,
) -> AsyncGenerator[Completion]:
    """Completes all samples at once and yields each as it ends.

    A `SampleFailedError` is raised once the others are done, every other error at once. Closing the
    generator cancels what is under way.
    """
    began = time.perf_counter()
    result = "cancelled"
    pending = {
        asyncio.ensure_future(complete(Sample(index, number, prompt, seed)))
        for index, prompt in enumerate(request.prompts)
        for number, seed in enumerate(prompt.seeds)
    }
    metrics.batch_size.observe(len(pending))
    failed: SampleFailedError | None = None
    try:
        with metrics.requests_running.track_inprogress():
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    try:
                        completion = task.result()
                    except SampleFailedError as error:
                        failed = error
                        continue
                    _count(completion, metrics)
                    yield completion
        if failed is not None:
            raise failed
        result = "finished"
    except Exception:
        result = "failed"
        raise
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        metrics.requests.labels(result).inc()
        metrics.end_to_end.observe(time.perf_counter() - began)


def _count(completion: Completion, metrics: GenerationMetrics) -> None:
    metrics.completions.labels(completion.finish_reason.value).inc()
    metrics.completion_tokens.observe(len(completion.token_ids))
    metrics.generation_tokens.inc(len(completion.token_ids))
    metrics.prompt_tokens.inc(len(completion.prompt_token_ids))
