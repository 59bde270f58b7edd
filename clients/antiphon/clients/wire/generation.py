"""Generation on the wire (`antiphon/v1/generation.proto`): requests, completions, model info."""

from __future__ import annotations

import math
from itertools import pairwise

from antiphon.clients.types import (
    Completion,
    EngineCapabilities,
    FinishReason,
    GenerateRequest,
    ModelInfo,
    PromptSamples,
    SamplingParameters,
    WeightsSpan,
)
from antiphon.clients.wire.checks import (
    at,
    encodable,
    enum_from_proto,
    require,
    require_at_least,
    require_at_most,
    require_id,
)
from antiphon.clients.wire.common import prompt_from_proto, prompt_to_proto
from antiphon.clients.wire.push import (
    DTYPE_NUMBERS,
    DTYPES,
    PUSH_KIND_NUMBERS,
    PUSH_KINDS,
    loaded_weights_from_proto,
    loaded_weights_to_proto,
)
from antiphon.v1 import generation_pb2 as pb

FINISH_REASONS = {
    pb.FINISH_REASON_END_TOKEN: FinishReason.END_TOKEN,
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
}
_FINISH_REASON_NUMBERS = {reason: number for number, reason in FINISH_REASONS.items()}

MAX_SAMPLES = 1 << 18
"""Most completions of one Generate."""

SMALLEST_TEMPERATURE = 1e-6
"""Logits divided by less leave the numbers of float32."""


def sampling_to_proto(sampling: SamplingParameters) -> pb.SamplingParameters:
    """Sampling parameters; None leaves a filter out."""
    return pb.SamplingParameters(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        max_new_tokens=sampling.max_new_tokens,
    )


def sampling_from_proto(
    message: pb.SamplingParameters, field: str = "sampling"
) -> SamplingParameters:
    """Sampling parameters; FieldError for one outside its range."""
    require(
        message.temperature == 0 or SMALLEST_TEMPERATURE <= message.temperature < math.inf,
        at(field, "temperature"),
        message.temperature,
        f"0 for greedy decoding, or a finite number from {SMALLEST_TEMPERATURE:g} on",
    )
    top_k = message.top_k if message.HasField("top_k") else None
    if top_k is not None:
        require(top_k >= 1, at(field, "top_k"), top_k, "at least 1, or left out for all tokens")
    top_p = message.top_p if message.HasField("top_p") else None
    if top_p is not None:
        require(0 < top_p <= 1, at(field, "top_p"), top_p, "above 0 and at most 1, or left out")
    require_at_least(message.max_new_tokens, 1, at(field, "max_new_tokens"))
    return SamplingParameters(message.temperature, top_k, top_p, message.max_new_tokens)


def generate_request_to_proto(request: GenerateRequest) -> pb.GenerateRequest:
    """A request to sample one batch."""
    return pb.GenerateRequest(
        run_id=request.run_id,
        incarnation=request.incarnation,
        agent=request.agent,
        min_weights_version=request.min_weights_version,
        prompts=[
            pb.PromptSamples(
                prompt=prompt_to_proto(entry.prompt, f"prompts[{index}].prompt"),
                seeds=entry.seeds,
            )
            for index, entry in enumerate(request.prompts)
        ],
        sampling=sampling_to_proto(request.sampling),
        include_full_logprobs=request.include_full_logprobs,
    )


def generate_request_from_proto(message: pb.GenerateRequest) -> GenerateRequest:
    """A request to sample one batch.

    Raises:
        FieldError: It has no run, prompts, seeds or sampling parameters, or one of these is outside
            its range; or it asks for more than `MAX_SAMPLES` completions.
    """
    require_id(message.run_id, "run_id")
    require_at_least(message.incarnation, 1, "incarnation")
    require(bool(message.prompts), "prompts", "none", "at least one prompt")
    require(message.HasField("sampling"), "sampling", "nothing", "sampling parameters")
    prompts = []
    for index, entry in enumerate(message.prompts):
        seeds = tuple(entry.seeds)
        require(bool(seeds), f"prompts[{index}].seeds", "none", "one seed per sample")
        prompts.append(
            PromptSamples(prompt_from_proto(entry.prompt, f"prompts[{index}].prompt"), seeds)
        )
    require_at_most(sum(len(entry.seeds) for entry in prompts), MAX_SAMPLES, "prompts.seeds")
    return GenerateRequest(
        run_id=message.run_id,
        incarnation=message.incarnation,
        agent=message.agent,
        min_weights_version=message.min_weights_version,
        prompts=tuple(prompts),
        sampling=sampling_from_proto(message.sampling),
        include_full_logprobs=message.include_full_logprobs,
    )


def completion_to_proto(completion: Completion) -> pb.Completion:
    """A finished completion."""
    return encodable(
        lambda: pb.Completion(
            prompt_index=completion.prompt_index,
            sample_index=completion.sample_index,
            text=completion.text,
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            kept_sizes=completion.kept_sizes,
            full_logprobs=completion.full_logprobs,
            full_logprobs_temperature_1=completion.full_logprobs_temperature_1,
            finish_reason=_FINISH_REASON_NUMBERS[completion.finish_reason],
            prompt_token_ids=completion.prompt_token_ids,
            weights_spans=[
                pb.WeightsSpan(start=span.start, weights_version=span.weights_version)
                for span in completion.weights_spans
            ],
            instance_id=completion.instance_id,
            boot_id=completion.boot_id,
        ),
        "completion.text",
    )


def completion_from_proto(message: pb.Completion, field: str = "completion") -> Completion:
    """A finished completion.

    Raises:
        FieldError: Its lists do not have one entry per token, a log-probability is not finite, or
            no weights version is named.
    """
    token_ids = tuple(message.token_ids)
    logprobs = tuple(message.logprobs)
    kept_sizes = tuple(message.kept_sizes)
    full_logprobs = tuple(message.full_logprobs)
    full_logprobs_temperature_1 = tuple(message.full_logprobs_temperature_1)
    count = len(token_ids)
    require(count > 0, at(field, "token_ids"), "none", "at least the end token")
    for name, values in (("logprobs", logprobs), ("kept_sizes", kept_sizes)):
        require(len(values) == count, at(field, name), len(values), f"{count}, one per token")
    for name, values in (
        ("full_logprobs", full_logprobs),
        ("full_logprobs_temperature_1", full_logprobs_temperature_1),
    ):
        require(
            len(values) in (0, count),
            at(field, name),
            len(values),
            f"none or {count}, one per token",
        )
    for name, values in (
        ("logprobs", logprobs),
        ("full_logprobs", full_logprobs),
        ("full_logprobs_temperature_1", full_logprobs_temperature_1),
    ):
        require(
            all(map(math.isfinite, values)),
            at(field, name),
            "a value that is not finite",
            "finite log-probabilities",
        )
    require(min(kept_sizes) >= 1, at(field, "kept_sizes"), 0, "at least 1 for each token")
    return Completion(
        prompt_index=message.prompt_index,
        sample_index=message.sample_index,
        text=message.text,
        token_ids=token_ids,
        logprobs=logprobs,
        kept_sizes=kept_sizes,
        finish_reason=enum_from_proto(
            message.finish_reason, FINISH_REASONS, at(field, "finish_reason")
        ),
        prompt_token_ids=tuple(message.prompt_token_ids),
        weights_spans=_spans_from_proto(message, count, at(field, "weights_spans")),
        instance_id=message.instance_id,
        boot_id=message.boot_id,
        full_logprobs=full_logprobs,
        full_logprobs_temperature_1=full_logprobs_temperature_1,
    )


def _spans_from_proto(message: pb.Completion, count: int, field: str) -> tuple[WeightsSpan, ...]:
    spans = tuple(WeightsSpan(span.start, span.weights_version) for span in message.weights_spans)
    starts = [span.start for span in spans]
    require(
        starts[:1] == [0]
        and all(first < second for first, second in pairwise(starts))
        and starts[-1] < count,
        field,
        f"starts {starts}",
        f"rising starts from 0 on, below {count}",
    )
    return spans


def model_info_to_proto(info: ModelInfo) -> pb.GetModelInfoResponse:
    """What a generation service runs."""
    capabilities = info.capabilities
    return pb.GetModelInfoResponse(
        model=info.model,
        engine=info.engine,
        vocabulary_size=info.vocabulary_size,
        tokenizer_fingerprint=info.tokenizer_fingerprint,
        context_length=info.context_length,
        end_token_ids=info.end_token_ids,
        loaded=loaded_weights_to_proto(info.loaded),
        bound_run_id=info.bound_run_id,
        bound_incarnation=info.bound_incarnation,
        instance_id=info.instance_id,
        boot_id=info.boot_id,
        capabilities=pb.EngineCapabilities(
            push_kinds=sorted(PUSH_KIND_NUMBERS[kind] for kind in capabilities.push_kinds),
            token_ids=capabilities.token_ids,
            logprobs=capabilities.logprobs,
            full_logprobs=capabilities.full_logprobs,
            seeds=capabilities.seeds,
            batch_rows=capabilities.batch_rows,
            delta_dtypes=sorted(DTYPE_NUMBERS[dtype] for dtype in capabilities.delta_dtypes),
        ),
        max_prompt_tokens=info.max_prompt_tokens,
        reads_store=info.reads_store,
    )


def model_info_from_proto(message: pb.GetModelInfoResponse) -> ModelInfo:
    """What a generation service runs; kinds and formats that this side does not know left out."""
    capabilities = message.capabilities
    return ModelInfo(
        model=message.model,
        engine=message.engine,
        vocabulary_size=message.vocabulary_size,
        tokenizer_fingerprint=message.tokenizer_fingerprint,
        context_length=message.context_length,
        end_token_ids=tuple(message.end_token_ids),
        loaded=loaded_weights_from_proto(message.loaded),
        bound_run_id=message.bound_run_id,
        bound_incarnation=message.bound_incarnation,
        instance_id=message.instance_id,
        boot_id=message.boot_id,
        capabilities=EngineCapabilities(
            push_kinds=frozenset(
                PUSH_KINDS[kind] for kind in capabilities.push_kinds if kind in PUSH_KINDS
            ),
            token_ids=capabilities.token_ids,
            logprobs=capabilities.logprobs,
            full_logprobs=capabilities.full_logprobs,
            seeds=capabilities.seeds,
            batch_rows=capabilities.batch_rows,
            delta_dtypes=frozenset(
                DTYPES[dtype] for dtype in capabilities.delta_dtypes if dtype in DTYPES
            ),
        ),
        max_prompt_tokens=message.max_prompt_tokens,
        reads_store=message.reads_store,
    )
