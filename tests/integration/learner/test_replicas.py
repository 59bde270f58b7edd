"""A learner and real generation services: restarts, take-overs, strangers and silence."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from tests.integration.learner.generation_servers import (
    learner,
    prompts,
    sampled,
    services,
)

from antiphon.clients.errors import CallError
from antiphon.clients.retry import RetryPolicy
from antiphon.learner.weights.connect import check_fit, largest_incarnation, model_infos, needs_of
from antiphon.learner.weights.lease import LeaseWait
from antiphon.learner.weights.replicas import RunSupersededError, ServiceTakenError
from antiphon.services.common.models import load_model, load_tokenizer
from antiphon.services.generation.choices import OnSwap


async def test_every_replica_applies_the_same_version_and_samples_from_it(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    async with (
        services(tiny_model_folder, tmp_path, 2) as (one, two),
        learner(tiny_model_folder, [one.address, two.address]) as side,
    ):
        published = await side.publisher.publish()
        infos = await model_infos(side.replicas, start_timeout=5, timeout=5)
        assert [info.loaded.version for info in infos] == [1, 1]
        assert infos[0].loaded.digest == infos[1].loaded.digest
        assert published.version == 1
        came = await sampled(side.agent, prompts(3))
        assert len(came) == 6
        assert {c.weights_spans[0].weights_version for c in came.values()} == {1}
        assert len({c.boot_id for c in came.values()}) == 2


async def test_a_replica_that_restarts_between_batches_gets_its_weights_again(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    """S3: noticed, pushed again, nothing sampled from base weights, nothing lost or doubled."""
    async with (
        services(tiny_model_folder, tmp_path, 2) as (one, two),
        learner(tiny_model_folder, [one.address, two.address]) as side,
    ):
        await side.publisher.publish()
        before = await sampled(side.agent, prompts(4))
        await two.restart()
        after = await sampled(side.agent, prompts(4))
        assert {p: c.token_ids for p, c in before.items()} == {
            p: c.token_ids for p, c in after.items()
        }
        assert before[3, 0].boot_id != after[3, 0].boot_id
        assert before[0, 0].boot_id == after[0, 0].boot_id
        assert {c.weights_spans[0].weights_version for c in after.values()} == {1}


async def test_a_replica_that_restarts_in_the_middle_of_a_batch_loses_and_doubles_nothing(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    """S3: the answers in hand are kept, the batch is asked again whole under the same weights."""
    asked = prompts(6, samples=4)
    async with (
        services(tiny_model_folder, tmp_path, 1) as (service,),
        learner(tiny_model_folder, [service.address], max_new_tokens=200) as side,
    ):
        await side.publisher.publish()
        whole = await sampled(side.agent, asked)
        first = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            again = group.create_task(sampled(side.agent, asked, lambda c: first.set()))
            await first.wait()
            await service.restart()
        assert {p: c.token_ids for p, c in again.result().items()} == {
            p: c.token_ids for p, c in whole.items()
        }


async def test_a_higher_incarnation_takes_over_and_the_lower_one_is_told_and_stops(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    """S7: the resumed learner pushes version 1 again; the old one that wakes up cannot."""
    async with (
        services(tiny_model_folder, tmp_path, 1) as (service,),
        learner(tiny_model_folder, [service.address], incarnation=1) as old,
    ):
        await old.publisher.publish()
        await old.publisher.publish()
        infos = await model_infos(old.replicas, start_timeout=5, timeout=5)
        assert largest_incarnation(infos, "run") == 1
        assert largest_incarnation(infos, "another run") == 0
        async with learner(tiny_model_folder, [service.address], incarnation=2) as new:
            assert (await new.publisher.publish()).version == 1
            with pytest.raises(RunSupersededError, match=r"incarnation 2, this learner is 1"):
                await sampled(old.agent, prompts(1))
            with pytest.raises(RunSupersededError, match=service.address):
                await old.publisher.publish()
            assert old.publisher.version == 2
            assert len(await sampled(new.agent, prompts(1))) == 2


async def test_a_service_that_another_run_holds_is_refused_with_that_runs_name(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    async with (
        services(tiny_model_folder, tmp_path, 1) as (service,),
        learner(tiny_model_folder, [service.address], run_id="first") as first,
        learner(tiny_model_folder, [service.address], run_id="second") as second,
    ):
        await first.publisher.publish()
        with pytest.raises(ServiceTakenError, match=r"belongs to run first"):
            await second.publisher.publish()


async def test_a_run_that_follows_a_dead_one_waits_until_its_lease_has_ended(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    """A Job that was started again under a new run id; who was taken over does not take back."""
    said: list[str] = []
    wait = LeaseWait(longest=30, note=said.append)
    async with (
        services(tiny_model_folder, tmp_path, 1, run_lease_seconds=0.5) as (service,),
        learner(tiny_model_folder, [service.address], run_id="dead") as dead,
        learner(tiny_model_folder, [service.address], run_id="new", lease=wait) as new,
    ):
        await dead.publisher.publish()
        assert (await new.publisher.publish()).version == 1
        assert len(await sampled(new.agent, prompts(1))) == 2
        (line,) = said
        assert f"at {service.address}, which run dead has for another" in line
        with pytest.raises(ServiceTakenError, match=r"belongs to run new"):
            await dead.publisher.publish()


async def test_a_run_does_not_wait_for_one_that_lives(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    said: list[str] = []

    async def first_calls(_: float) -> None:
        await sampled(first.agent, prompts(1))

    clock = iter([0.0, 100.0])
    wait = LeaseWait(longest=600, note=said.append, sleep=first_calls, now=clock.__next__)
    async with (
        services(tiny_model_folder, tmp_path, 1) as (service,),
        learner(tiny_model_folder, [service.address], run_id="first") as first,
        learner(tiny_model_folder, [service.address], run_id="second", lease=wait) as second,
    ):
        await first.publisher.publish()
        with pytest.raises(ServiceTakenError, match=r"belongs to run first"):
            await second.publisher.publish()
        assert len(said) == 1


async def test_a_service_that_never_answers_ends_in_the_root_error(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    """S5: deadline, retries, then an error that names address and call."""
    address = f"unix:{tmp_path / 'silent.sock'}"
    never = asyncio.Event()

    async def silence(request: object, context: object) -> None:
        await never.wait()

    handler = grpc.unary_stream_rpc_method_handler(silence)
    server = grpc.aio.server()
    server.add_registered_method_handlers("antiphon.v1.GenerationService", {"Generate": handler})
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "antiphon.v1.GenerationService", {"Generate": handler}
            ),
        )
    )
    server.add_insecure_port(address)
    await server.start()
    retry = RetryPolicy(attempts=3, deadline_attempts=2, initial_backoff=0.01)
    try:
        async with learner(tiny_model_folder, [address], retry=retry, timeout=0.3) as side:
            with pytest.raises(CallError, match=r"Generate at unix:.*DEADLINE_EXCEEDED.*2 times"):
                await sampled(side.agent, prompts(1))
    finally:
        never.set()
        await server.stop(0)


async def test_a_service_that_is_still_starting_is_waited_for(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    async with services(tiny_model_folder, tmp_path, 1) as (service,):
        await service.stop()
        retry = RetryPolicy(attempts=1)
        async with (
            learner(tiny_model_folder, [service.address], retry=retry) as side,
            asyncio.TaskGroup() as group,
        ):
            asking = group.create_task(model_infos(side.replicas, start_timeout=30, timeout=5))
            await service.start()
        assert asking.result()[0].engine == "transformers"


async def test_a_service_of_another_vocabulary_or_tokenizer_is_refused_before_any_push(
    tiny_model_folder: Path, tiny_folders: object, tmp_path: Path
) -> None:
    model = load_model(tiny_model_folder, dtype=None)  # type: ignore[arg-type]
    tokenizer = load_tokenizer(tiny_model_folder)
    async with (
        services(tiny_model_folder, tmp_path, 1) as (service,),
        learner(tiny_model_folder, [service.address]) as side,
    ):
        (info,) = await model_infos(side.replicas, start_timeout=5, timeout=5)
        check_fit(info, needs_of(1, model, tokenizer, full_logprobs=True), service.address)
        tokenizer.add_special_tokens({"pad_token": "other"})
        with pytest.raises(ValueError, match=r"agents\[1\] at unix:.*tokenizer"):
            check_fit(info, needs_of(1, model, tokenizer, full_logprobs=False), service.address)
        model.resize_token_embeddings(50)
        with pytest.raises(ValueError, match=r"vocabulary: got \d+ tokens.*wanted 50"):
            check_fit(info, needs_of(1, model, None, full_logprobs=False), service.address)


@pytest.mark.parametrize("on_swap", ["finish", "continue"])
async def test_weights_that_are_published_while_a_batch_is_sampled(
    tiny_model_folder: Path, tmp_path: Path, on_swap: OnSwap
) -> None:
    """With `max_staleness` above 0. Every token says which version sampled it, and the next batch
    is sampled from the new one."""
    async with (
        services(tiny_model_folder, tmp_path, 1, on_swap) as (service,),
        learner(tiny_model_folder, [service.address], max_new_tokens=200) as side,
    ):
        await side.publisher.publish()
        first = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            under_way = group.create_task(
                sampled(side.agent, prompts(6, samples=4), lambda _: first.set())
            )
            await first.wait()
            await side.publisher.publish()
        spans = [completion.weights_spans for completion in under_way.result().values()]
        versions = {tuple(span.weights_version for span in of_one) for of_one in spans}
        assert len(spans) == 24
        assert versions == ({(1,)} if on_swap == "finish" else {(1,), (1, 2)})
        again = await sampled(side.agent, prompts(1))
        assert {c.weights_spans[0].weights_version for c in again.values()} == {2}
