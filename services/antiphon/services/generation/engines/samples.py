"""Samples of a request that are asked of another program one by one, side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import grpc

from antiphon.clients.types import (
    Completion,
    FieldError,
    FinishReason,
    SamplingParameters,
    WeightsSpan,
)
from antiphon.services.common.errors import ServiceError
from antiphon.services.generation.engine import EncodedPrompt, EngineRequest
from antiphon.services.generation.engines.served_model import ServedModel
from antiphon.services.generation.metrics import GenerationMetrics

_GREEDY = SamplingParameters(temperature=0.0, top_k=None, top_p=None, max_new_tokens=1)


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


class Sampled:
    """What the program sampled: ids, and of each its log-probability and the kept set's size.

    Args:
        sampling: How it was asked to sample.
        vocabulary_size: Width of the logits.
    """

    def __init__(self, sampling: SamplingParameters, vocabulary_size: int) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.kept_sizes: list[int] = []
        self._greedy = sampling.temperature == 0
        self._cut = cut_by_top_p(sampling)
        self._most = min(sampling.top_k or vocabulary_size, vocabulary_size)

    def add(self, token_id: int, logprob: float, likeliest: int = 0) -> None:
        """Adds a token.

        Args:
            token_id: Its id.
            logprob: As the program tells it.
            likeliest: How many of the likeliest tokens at its place the program told of, where
                `top_p` cuts: tokens that are filtered out are not among them, equals of the last
                one may be.
        """
        self.token_ids.append(token_id)
        # Greedy decoding is a distribution of one token, whatever the program tells.
        self.logprobs.append(0.0 if self._greedy else logprob)
        kept = min(likeliest, self._most) if self._cut else self._most
        self.kept_sizes.append(1 if self._greedy else kept)

    @classmethod
    def untold(cls, ids: Sequence[int]) -> Sampled:
        """Ids of which the program does not tell how it sampled them."""
        sampled = cls(_GREEDY, vocabulary_size=1)
        for token_id in ids:
            sampled.add(token_id, 0.0)
        return sampled


class SampleFailedError(ServiceError):
    """One completion failed while the others need not; asked again, it may succeed."""

    def __init__(self, sample: Sample, problem: str) -> None:
        super().__init__(grpc.StatusCode.ABORTED, f"{sample.name}: {problem}")


def cut_by_top_p(sampling: SamplingParameters) -> bool:
    """Whether `top_p` leaves tokens out."""
    return sampling.temperature > 0 and sampling.top_p is not None and sampling.top_p < 1


def check_top_p(sampling: SamplingParameters, most: int, why: str) -> None:
    """Refuses a `top_p` of which the program cannot tell which tokens it kept.

    Where it cuts, how many tokens it kept is read from the likeliest ones of each place; of these
    all that `top_k` leaves must be told.

    Args:
        sampling: What is asked.
        most: How many of the likeliest tokens the program tells.
        why: Says in the message what `most` is.

    Raises:
        FieldError: Naming the parameter.
    """
    if cut_by_top_p(sampling) and not 1 <= (sampling.top_k or 0) <= most:
        raise FieldError(
            "sampling.top_k",
            "none" if sampling.top_k is None else sampling.top_k,
            f"at most {most} beside top_p {sampling.top_p:g}: {why}; or no top_p",
        )


def completion_of(
    sample: Sample, sampled: Sampled, served: ServedModel, weights_version: int
) -> Completion:
    """The completion up to its first end token, whether the program stopped there or not."""
    ends = [i for i, token in enumerate(sampled.token_ids) if token in served.end_ids]
    count = ends[0] + 1 if ends else len(sampled.token_ids)
    ids = tuple(sampled.token_ids[:count])
    return Completion(
        prompt_index=sample.prompt_index,
        sample_index=sample.sample_index,
        text=served.codec.decode(ids),
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
