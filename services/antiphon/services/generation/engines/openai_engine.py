"""The engine that asks a server of the OpenAI chat API: for frozen agents, judges and evaluation.

Such a server tells neither the ids that it samples nor the distribution, and keeps its weights, so
what it answers cannot be trained on. Ids are those that the model's tokenizer makes of the answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
import httpx2
from huggingface_hub import ChatCompletionOutput
from huggingface_hub.errors import HfHubHTTPError, InferenceTimeoutError

from antiphon.clients.types import (
    ChatMessage,
    Completion,
    EngineCapabilities,
    FieldError,
    LoadedWeights,
    Prompt,
    SamplingParameters,
    TensorSpec,
    TokenIds,
)
from antiphon.services.common.errors import ServiceError
from antiphon.services.common.models import encode_text
from antiphon.services.generation.engine import EngineInfo, EngineRequest, PushedTensor
from antiphon.services.generation.engines.hub_client import inference_client, wanted_until
from antiphon.services.generation.engines.samples import (
    Sample,
    Sampled,
    SampleFailedError,
    completion_of,
    side_by_side,
)
from antiphon.services.generation.engines.served_model import ServedModel
from antiphon.services.generation.metrics import GenerationMetrics, generation_metrics

_AT_ONCE = 64
_ATTEMPTS = 8
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 10.0
_SEEDS = 2**31 - 1
_BUSY = (408, 409, 429, 500, 502, 503, 504)


class OpenAIEngine:
    """Asks a chat API.

    Args:
        served: The model that the learner holds for this agent: its tokenizer counts tokens.
        address: URL up to and without ``/chat/completions``.
        model: What the server calls its model.
        extra: More fields of every request.
        token: Sent as bearer token; None for none.
        metrics: Where it counts.
    """

    def __init__(
        self,
        served: ServedModel,
        address: str,
        *,
        model: str,
        extra: Mapping[str, Any] | None = None,
        token: str | None = None,
        metrics: GenerationMetrics | None = None,
    ) -> None:
        self._served = served
        self._address = address.rstrip("/")
        self._model = model
        self._extra = dict(extra or {})
        self._client = inference_client(self._address, token)
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._under_way = 0
        self._last_answer = time.monotonic()
        self._metrics = metrics or generation_metrics()
        self._metrics.step_age.set_function(lambda: self.seconds_since_step)
        # Somebody else's weights; the digest tells them from any that are pushed.
        said = f"{model} at {self._address}"
        self.loaded = LoadedWeights(digest=hashlib.sha256(said.encode()).digest())
        self.base: tuple[TensorSpec, ...] = ()
        self.tensor_shapes: Mapping[str, tuple[int, ...]] = served.tensor_shapes
        self.info = EngineInfo(
            model=model,
            engine="openai",
            vocabulary_size=served.vocabulary_size,
            tokenizer_fingerprint=served.fingerprint,
            context_length=served.context_length,
            end_token_ids=served.end_ids,
            capabilities=EngineCapabilities(
                push_kinds=frozenset(),
                token_ids=False,
                logprobs=False,
                full_logprobs=False,
                seeds=False,
            ),
        )

    @property
    def seconds_since_step(self) -> float:
        """Age of the last answer while some are waited for; 0 while idle."""
        return time.monotonic() - self._last_answer if self._under_way else 0.0

    def check_adapter(self, specs: Sequence[TensorSpec], field: str) -> None:
        """Nothing: no push gets here."""

    def encode(self, prompt: Prompt, field: str) -> tuple[int, ...]:
        """The ids that the model's tokenizer makes of a prompt, to count them.

        Raises:
            FieldError: It is given as token ids.
        """
        if isinstance(prompt, TokenIds):
            raise FieldError(
                field,
                f"{len(prompt.ids)} token ids",
                "text or chat messages: this engine takes text only",
            )
        return self._served.codec.encode(prompt, field)

    def generate(self, request: EngineRequest) -> AsyncGenerator[Completion]:
        """Yields completions as they end; closing the generator drops the server's requests."""
        return side_by_side(request, partial(self._complete, request=request), self._metrics)

    async def _complete(self, sample: Sample, request: EngineRequest) -> Completion:
        async with self._slots:
            if not self._under_way:
                self._last_answer = time.monotonic()
            self._under_way += 1
            try:
                request.admit(self.loaded)
                with wanted_until(request.deadline):
                    return await self._answer(sample, request.sampling)
            finally:
                self._under_way -= 1

    async def _answer(self, sample: Sample, sampling: SamplingParameters) -> Completion:
        pause = _FIRST_PAUSE_SECONDS
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                answer = await self._ask(sample, sampling)
            except (HfHubHTTPError, httpx2.TransportError, InferenceTimeoutError) as error:
                if attempt == _ATTEMPTS or not _passing(error):
                    raise self._explained(error, sample) from error
            else:
                self._last_answer = time.monotonic()
                return self._read(answer, sample, sampling)
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        raise AssertionError("unreachable")

    async def _ask(self, sample: Sample, sampling: SamplingParameters) -> ChatCompletionOutput:
        prompt = sample.prompt.prompt
        assert not isinstance(prompt, TokenIds)  # `encode` has refused them.
        chat = (ChatMessage("user", prompt),) if isinstance(prompt, str) else prompt
        # No field of the chat API proper, so a server may refuse it; leaving it out would be wrong.
        top_k = {} if sampling.top_k is None else {"top_k": sampling.top_k}
        return await self._client.chat_completion(
            [{"role": message.role, "content": message.content} for message in chat],
            model=self._model,
            max_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sample.seed % _SEEDS,
            extra_body={**top_k, **self._extra} or None,
        )

    def _read(
        self, answer: ChatCompletionOutput, sample: Sample, sampling: SamplingParameters
    ) -> Completion:
        if not answer.choices:
            raise SampleFailedError(sample, f"{self._address} answered without a choice")
        choice = answer.choices[0]
        ids = encode_text(self._served.tokenizer, choice.message.content or "")
        ids = ids[: sampling.max_new_tokens]
        ends = self._served.end_ids
        if (choice.finish_reason == "stop" or not ids) and ends:
            ids = [*ids[: sampling.max_new_tokens - 1], min(ends)]
        return completion_of(sample, Sampled.untold(ids), self._served, weights_version=0)

    def _explained(self, error: Exception, sample: Sample) -> ServiceError:
        if not isinstance(error, HfHubHTTPError):
            return ServiceError(
                grpc.StatusCode.UNAVAILABLE, f"{self._address} cannot be reached: {error}"
            )
        status = error.response.status_code
        codes = {
            401: grpc.StatusCode.PERMISSION_DENIED,
            403: grpc.StatusCode.PERMISSION_DENIED,
            404: grpc.StatusCode.FAILED_PRECONDITION,
            429: grpc.StatusCode.RESOURCE_EXHAUSTED,
        }
        code = codes.get(status, grpc.StatusCode.INVALID_ARGUMENT)
        if status != 429 and status in _BUSY:
            code = grpc.StatusCode.UNAVAILABLE
        return ServiceError(
            code, f"{sample.name}: {self._address} answered {status}: {error.response.text[:500]}"
        )

    async def apply(self, tensors: Sequence[PushedTensor], loaded: LoadedWeights) -> float:
        """Never called: no kind of push is offered."""
        raise NotImplementedError("the weights are somebody else's")

    def start(self) -> None:
        """Nothing: the server runs already."""

    async def stop(self) -> None:
        """Drops the connections."""
        await self._client.close()  # type: ignore[no-untyped-call]


def _passing(error: Exception) -> bool:
    return not isinstance(error, HfHubHTTPError) or error.response.status_code in _BUSY
