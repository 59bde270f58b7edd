"""Requests to text-generation-inference through its maintained client, and what its errors mean."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import httpx2
from huggingface_hub.errors import (
    GenerationError,
    HfHubHTTPError,
    IncompleteGenerationError,
    InferenceTimeoutError,
    OverloadedError,
    ValidationError,
)

from antiphon.clients.types import SamplingParameters
from antiphon.services.common.errors import ServiceError
from antiphon.services.generation.engines.hub_client import inference_client, wanted_until
from antiphon.services.generation.engines.samples import (
    Sample,
    Sampled,
    SampleFailedError,
    check_top_p,
    cut_by_top_p,
)

if TYPE_CHECKING:
    from huggingface_hub import TextGenerationOutput

_ATTEMPTS = 10
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0
_SEED_BOUND = 2**63 - 1


class ServerGoneError(Exception):
    """The connection broke, so the request may be sent again, to the same server or the next."""


@dataclass(frozen=True, slots=True)
class TgiLimits:
    """What a server says of itself at ``/info``, and the largest `top_n_tokens` that it takes."""

    model_id: str
    max_concurrent_requests: int
    max_input_tokens: int
    max_total_tokens: int
    max_top_n_tokens: int


def check_sampling(sampling: SamplingParameters, limits: TgiLimits) -> None:
    """Refuses what this server cannot tell the whole distribution of; see `check_top_p`.

    Raises:
        FieldError: Naming the parameter.
    """
    check_top_p(
        sampling,
        limits.max_top_n_tokens,
        "so many of the likeliest tokens does this server tell (--max-top-n-tokens of "
        "text-generation-inference raises it)",
    )


class TgiClient:
    """Asks one server, over connections that are kept.

    Args:
        url: Where it is.
        limits: Of this server; no more requests than it takes are under way.
        vocabulary_size: Width of the logits.
        adapter_id: The LoRA adapter to sample with; None for none.
    """

    def __init__(
        self, url: str, limits: TgiLimits, vocabulary_size: int, *, adapter_id: str | None = None
    ) -> None:
        self._limits = limits
        self._vocabulary_size = vocabulary_size
        self._adapter_id = adapter_id
        self._slots = asyncio.Semaphore(max(1, limits.max_concurrent_requests))
        self._client = inference_client(url)

    async def close(self) -> None:
        """Drops the connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def sample(
        self,
        sample: Sample,
        text: str,
        sampling: SamplingParameters,
        deadline: float | None = None,
    ) -> Sampled:
        """Samples one completion, waiting for its turn and out an overload.

        Args:
            sample: Which one.
            text: Its prompt.
            sampling: How.
            deadline: When nobody waits any more, on the clock of `time.monotonic`.

        Raises:
            ServerGoneError: Nobody answers.
            SampleFailedError: The server failed at this one.
            ServiceError: INVALID_ARGUMENT with the server's reason, or RESOURCE_EXHAUSTED where it
                stays overloaded.
        """
        pause = _FIRST_PAUSE_SECONDS
        async with self._slots:
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    with wanted_until(deadline):
                        answer = await self._ask(sample, text, sampling)
                    return self._read(answer, sample, sampling)
                except _BusyError as error:
                    if attempt == _ATTEMPTS:
                        raise ServiceError(
                            grpc.StatusCode.RESOURCE_EXHAUSTED,
                            f"text-generation-inference is overloaded after {attempt} attempts: "
                            f"{error}",
                        ) from error
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        raise AssertionError("unreachable")

    async def _ask(
        self, sample: Sample, text: str, sampling: SamplingParameters
    ) -> TextGenerationOutput:
        greedy = sampling.temperature == 0
        cut = cut_by_top_p(sampling)
        try:
            return await self._client.text_generation(
                text,
                details=True,
                # Of one sample, since a server computes such a prompt without its prefix cache.
                decoder_input_details=sample.sample_index == 0,
                return_full_text=False,
                adapter_id=self._adapter_id,
                max_new_tokens=sampling.max_new_tokens,
                do_sample=not greedy,
                seed=sample.seed % _SEED_BOUND + 1,
                temperature=None if greedy else sampling.temperature,
                top_k=None if greedy else sampling.top_k,
                top_p=sampling.top_p if cut else None,
                top_n_tokens=sampling.top_k if cut else None,
            )
        except ValidationError as error:
            raise ServiceError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{sample.name}: text-generation-inference refuses it: {error}",
            ) from error
        except (GenerationError, IncompleteGenerationError) as error:
            raise SampleFailedError(
                sample, f"text-generation-inference failed at it: {error}"
            ) from error
        except OverloadedError as error:
            raise _BusyError(str(error)) from error
        except HfHubHTTPError as error:
            if error.response.status_code in (429, 503):
                raise _BusyError(str(error)) from error
            raise SampleFailedError(
                sample, f"text-generation-inference answered: {error}"
            ) from error
        except (httpx2.TransportError, InferenceTimeoutError) as error:
            raise ServerGoneError(f"{type(error).__name__}: {error}") from error

    def _read(
        self, output: TextGenerationOutput, sample: Sample, sampling: SamplingParameters
    ) -> Sampled:
        details = output.details
        if details is None or not details.tokens:
            raise SampleFailedError(sample, "text-generation-inference gave no token ids")
        reported = tuple(token.id for token in details.prefill)
        if reported and reported != sample.prompt.token_ids:
            raise ServiceError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{sample.name}: text-generation-inference made token ids {reported[:8]}… of the "
                f"prompt, wanted {sample.prompt.token_ids[:8]}…, those of --tokenizer; serve both "
                "with the same tokenizer",
            )
        sampled = Sampled(sampling, self._vocabulary_size)
        likeliest = iter(details.top_tokens or ())
        for token in details.tokens:
            sampled.add(token.id, token.logprob, len(next(likeliest, ())))
        if None in sampled.logprobs or min(sampled.kept_sizes) < 1:
            raise SampleFailedError(
                sample, "text-generation-inference left out log-probabilities or likeliest tokens"
            )
        return sampled


class _BusyError(Exception):
    """429 or 503."""
