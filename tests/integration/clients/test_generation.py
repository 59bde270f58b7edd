"""Sampling over a real connection: every completion once, whatever breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from tests.integration.clients.servers import QUICK, abort, serving, within

from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.generation import GenerationClient
from antiphon.clients.retry import RetryPolicy
from antiphon.clients.types import (
    Completion,
    FinishReason,
    GenerateRequest,
    PromptSamples,
    SamplingParameters,
    WeightsSpan,
)
from antiphon.clients.wire import (
    completion_to_proto,
    generate_request_from_proto,
)
from antiphon.v1 import generation_pb2 as pb
from antiphon.v1.generation_pb2_grpc import (
    GenerationServiceServicer,
    add_GenerationServiceServicer_to_server,
)

REQUEST = GenerateRequest(
    run_id="r",
    incarnation=1,
    agent=0,
    min_weights_version=0,
    prompts=(PromptSamples("a", (10, 11)), PromptSamples("b", (20, 21, 22))),
    sampling=SamplingParameters(0.6, 50, 0.6, 8),
)
ALL = {(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)}


def completion(prompt: int, sample: int, seed: int) -> pb.GenerateResponse:
    """A completion whose text tells the seed that it was made from."""
    value = Completion(
        prompt_index=prompt,
        sample_index=sample,
        text=f"seed {seed}",
        token_ids=(seed,),
        logprobs=(-0.5,),
        kept_sizes=(1,),
        finish_reason=FinishReason.LENGTH,
        prompt_token_ids=(1,),
        weights_spans=(WeightsSpan(0, 0),),
        instance_id="i",
        boot_id="b",
    )
    return pb.GenerateResponse(completions=[completion_to_proto(value)])


def completions(request: GenerateRequest) -> list[pb.GenerateResponse]:
    """All completions of a request, last sample first, since any order is allowed."""
    return [
        completion(prompt, sample, seed)
        for prompt, entry in reversed(list(enumerate(request.prompts)))
        for sample, seed in reversed(list(enumerate(entry.seeds)))
    ]


Script = Callable[[GenerateRequest, Any], AsyncIterator[pb.GenerateResponse]]


class Scripted(GenerationServiceServicer):
    """Answers one call after another as scripted; the last script goes on."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.requests: list[GenerateRequest] = []
        self.metadata: list[dict[str, str]] = []

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> Any:  # noqa: N802
        self.requests.append(generate_request_from_proto(request))
        self.metadata.append(dict(context.invocation_metadata()))
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        async for response in script(self.requests[-1], context):
            yield response

    def register(self, server: grpc.aio.Server) -> None:
        add_GenerationServiceServicer_to_server(self, server)


async def answers(request: GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
    for response in completions(request):
        yield response


def breaks_after(count: int, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> Script:
    async def script(request: GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        for response in completions(request)[:count]:
            yield response
        await abort(context, code, "scripted break")

    return script


async def never_answers(
    request: GenerateRequest, context: Any
) -> AsyncIterator[pb.GenerateResponse]:
    await asyncio.Event().wait()
    yield pb.GenerateResponse()


async def collect(
    client: GenerationClient, timeout: float = 10, **options: Any
) -> list[Completion]:
    async def all_of_it() -> list[Completion]:
        return [item async for item in client.generate(REQUEST, timeout=timeout, **options)]

    result: list[Completion] = await within(all_of_it())
    return result


def indices(found: list[Completion]) -> list[tuple[int, int]]:
    return sorted((item.prompt_index, item.sample_index) for item in found)


async def test_every_completion_arrives_once(address: str) -> None:
    service = Scripted(answers)
    async with serving(service.register, address) as target, GenerationClient(target) as client:
        found = await collect(client)
    assert indices(found) == sorted(ALL)
    assert service.requests == [REQUEST]


@pytest.mark.parametrize("count", [0, 1, 4, 5])
async def test_whole_repeats_the_batch_and_yields_nothing_twice(count: int, address: str) -> None:
    """S3: no sample lost or doubled; the same batch again, so that seeds give the same."""
    service = Scripted(breaks_after(count), answers)
    async with (
        serving(service.register, address) as target,
        GenerationClient(target, retry=QUICK) as client,
    ):
        found = await collect(client)
    assert indices(found) == sorted(ALL)
    # With all five in hand only the stream's end was lost: nothing is asked again.
    assert service.requests == [REQUEST] * (1 if count == 5 else 2)


async def test_missing_asks_for_the_missing_samples_under_their_own_seeds(address: str) -> None:
    """S3: what arrived is not sampled again, and what comes finds its place."""
    service = Scripted(breaks_after(2), breaks_after(1), answers)
    async with (
        serving(service.register, address) as target,
        GenerationClient(target, retry=QUICK) as client,
    ):
        found = await collect(client, resume="missing")
    assert indices(found) == sorted(ALL)
    asked = [[entry.seeds for entry in request.prompts] for request in service.requests]
    assert asked == [[(10, 11), (20, 21, 22)], [(10, 11), (20,)], [(10, 11)]]
    seeds = {
        (prompt, sample): seed
        for prompt, entry in enumerate(REQUEST.prompts)
        for sample, seed in enumerate(entry.seeds)
    }
    for item in found:
        assert item.token_ids == (seeds[item.prompt_index, item.sample_index],)


async def test_a_service_that_gets_further_each_time_is_asked_on(address: str) -> None:
    """S8: attempts count what brought nothing new."""
    service = Scripted(*[breaks_after(count) for count in range(1, 5)], answers)
    retry = RetryPolicy(attempts=2, initial_backoff=0.001)
    async with (
        serving(service.register, address) as target,
        GenerationClient(target, retry=retry) as client,
    ):
        assert indices(await collect(client)) == sorted(ALL)
    assert len(service.requests) == 5


async def test_weights_that_are_missing_are_told_at_once_with_what_is_loaded(address: str) -> None:
    """S3: a restarted replica is noticed, not waited for."""

    async def missing(request: GenerateRequest, context: Any) -> AsyncIterator[Any]:
        code = grpc.StatusCode.FAILED_PRECONDITION
        await abort(context, code, "push first", "WEIGHTS_MISSING", loaded_version="0")
        yield

    service = Scripted(missing)
    async with serving(service.register, address) as target, GenerationClient(target) as client:
        with pytest.raises(CallError) as error:
            await collect(client)
    assert error.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert error.value.reason == "WEIGHTS_MISSING"
    assert error.value.metadata == {"loaded_version": "0"}
    assert len(service.requests) == 1


async def test_a_service_that_never_answers_ends_in_an_error(address: str) -> None:
    """S5: deadline, retry, then the root error."""
    service = Scripted(never_answers)
    async with (
        serving(service.register, address) as target,
        GenerationClient(target, retry=QUICK) as client,
    ):
        with pytest.raises(CallError, match="DEADLINE_EXCEEDED") as error:
            await collect(client, timeout=0.2)
    assert error.value.attempts == QUICK.deadline_attempts == len(service.requests)


async def test_nobody_there_ends_in_an_error_that_names_the_address() -> None:
    """S5: bounded, for a service that is not there at all."""
    async with serving(Scripted(answers).register) as target:
        gone = target
    async with GenerationClient(gone, retry=QUICK) as client:
        with pytest.raises(CallError, match=gone) as error:
            await collect(client)
    assert error.value.code is grpc.StatusCode.UNAVAILABLE
    assert error.value.attempts == QUICK.attempts


async def test_a_replica_that_restarts_in_the_middle_is_asked_again() -> None:
    """S3: the stream breaks with the process, and goes on with the next one."""
    hanging = asyncio.Event()

    async def hangs_after_one(request: GenerateRequest, context: Any) -> AsyncIterator[Any]:
        yield completions(request)[0]
        hanging.set()
        await asyncio.Event().wait()

    patient = RetryPolicy(attempts=20, initial_backoff=0.2, max_backoff=0.5)
    first = Scripted(hangs_after_one)
    async with serving(first.register) as target:
        client = GenerationClient(target, retry=patient)
        collecting = asyncio.create_task(collect(client, timeout=30))
        await within(hanging.wait())
    second = Scripted(answers)
    async with serving(second.register, target):
        found = await within(collecting, 30)
        await client.close()
    assert indices(found) == sorted(ALL)
    assert second.requests == [REQUEST]


@pytest.mark.parametrize(
    ("responses", "named"),
    [
        (lambda all_: all_[1:], "prompt 1 sample 2"),
        (lambda all_: [*all_, all_[0]], "prompt 1 sample 2 came twice"),
        (lambda all_: [*all_, completion(2, 0, 1)], "prompt 2 sample 0 was not asked for"),
        (lambda all_: [completion(0, 2, 1), *all_], "prompt 0 sample 2 was not asked for"),
    ],
)
async def test_unknown_missing_and_doubled_completions_are_named(
    responses: Callable[[list[Any]], list[Any]], named: str, address: str
) -> None:
    """S9: an answer that does not fit the question is an error, not a guess."""

    async def script(request: GenerateRequest, context: Any) -> AsyncIterator[Any]:
        for response in responses(completions(request)):
            yield response

    service = Scripted(script)
    async with serving(service.register, address) as target, GenerationClient(target) as client:
        with pytest.raises(ContractError, match=named):
            await collect(client)
    assert len(service.requests) == 1


async def test_a_malformed_completion_names_the_field(address: str) -> None:
    async def script(request: GenerateRequest, context: Any) -> AsyncIterator[Any]:
        response = completions(request)[0]
        response.completions[0].logprobs.append(-1.0)
        yield response

    service = Scripted(script)
    async with serving(service.register, address) as target, GenerationClient(target) as client:
        with pytest.raises(ContractError, match="logprobs"):
            await collect(client)


async def test_a_caller_that_leaves_early_frees_the_service(address: str) -> None:
    """S13: rollouts under way are dropped, and the service stops working on them."""
    freed = asyncio.Event()

    async def script(request: GenerateRequest, context: Any) -> AsyncIterator[Any]:
        try:
            yield completions(request)[0]
            await asyncio.Event().wait()
        finally:
            freed.set()

    service = Scripted(script)
    async with serving(service.register, address) as target, GenerationClient(target) as client:
        stream = client.generate(REQUEST, timeout=30)
        await within(anext(stream))
        await stream.aclose()
        await within(freed.wait())


async def test_an_unknown_method_is_final() -> None:
    service = GenerationServiceServicer()
    async with (
        serving(lambda server: add_GenerationServiceServicer_to_server(service, server)) as target,
        GenerationClient(target) as client,
    ):
        with pytest.raises(CallError) as error:
            await within(client.get_model_info(timeout=5))
    assert error.value.code is grpc.StatusCode.UNIMPLEMENTED
    assert error.value.attempts == 1
