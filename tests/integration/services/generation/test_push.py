"""PushWeights and GetPushStatus of a real server, in every way that a push can go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import torch
from tests.integration.services.generation.harness import (
    IDS,
    TIMEOUT,
    Hold,
    Push,
    Replica,
    messages_of,
    push_of,
    refusal,
    replica,
)
from tests.support.models import save_model, tiny_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from antiphon.clients.digest import weights_digest
from antiphon.clients.errors import CallError
from antiphon.clients.retry import RetryPolicy
from antiphon.clients.types import (
    LoadedWeights,
    PushHeader,
    PushKind,
    PushState,
    TensorDtype,
    WeightsSpan,
)
from antiphon.clients.wire import push_request_to_proto
from antiphon.services.common.models import load_model
from antiphon.services.common.tensors import tensor_specs, to_bytes, wire_tensors
from antiphon.v1 import generation_pb2 as pb

Folders = Callable[..., Path]
Code = grpc.StatusCode
SMALL = 64  # Bytes of a chunk: parts nearly every tensor.


async def sampled(r: Replica, version: int = 0, incarnation: int = 1) -> list[object]:
    got = await r.generate(
        IDS, samples=4, temperature=1.0, version=version, incarnation=incarnation
    )
    return sorted((c.sample_index, c.token_ids, c.logprobs) for c in got)


@pytest.mark.parametrize("dtype", list(TensorDtype))
@pytest.mark.parametrize("tie", [True, False])
async def test_after_a_push_greedy_output_is_that_of_the_pushed_model(
    tiny_folders: Folders, dtype: TensorDtype, tie: bool
) -> None:
    """S4: bit for bit, tied heads included, with nothing left of the cache before it."""
    new = tiny_folders(seed=5, tie=tie)
    push = push_of(new, 1, dtype=dtype)
    async with replica(tiny_folders(seed=0, tie=tie)) as r:
        before = await r.generate(IDS)
        result = await r.push(push, chunk_bytes=100)
        after = await r.generate(IDS, version=1)
    assert (result.weights_version, result.digest) == (1, push.header.digest)
    assert (result.instance_id, result.boot_id) == (r.server.instance_id, r.server.boot_id)
    assert 0 < result.pause_seconds < TIMEOUT
    model, ids = load_model(new, dtype=torch.float32), list(IDS.ids)
    for tensor in wire_tensors(model).values():
        tensor.copy_(tensor.to(getattr(torch, dtype)).float())
    wanted = []
    for _ in after[0].token_ids:
        with torch.no_grad():
            wanted.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        ids.append(wanted[-1])
    assert list(after[0].token_ids) == wanted
    assert after[0].weights_spans == (WeightsSpan(0, 1),)
    assert before[0].token_ids != after[0].token_ids


async def test_a_tensor_of_eight_megabytes_goes_through_in_chunks(tmp_path: Path) -> None:
    """S1: larger than any message that gRPC takes by default."""
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    folders = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=1 << 17,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
        )
        folders.append(save_model(tmp_path / str(seed), LlamaForCausalLM(config), tokenizer))
    push = push_of(folders[1], 1)
    assert max(spec.nbytes for spec in push.header.tensors) == 8 << 20
    async with replica(folders[0], weights_dtype=TensorDtype.FLOAT32) as r:
        await r.push(push)
        assert r.version == 1
        loaded = wire_tensors(r.engine.model)["model.embed_tokens.weight"]
        pushed = wire_tensors(load_model(folders[1], dtype=torch.float32))
        assert torch.equal(loaded, pushed["model.embed_tokens.weight"])


@pytest.mark.slow
async def test_a_tensor_of_three_gigabytes_goes_through_a_service(tmp_path: Path) -> None:
    """S1: beyond 2 GiB, what one message can hold and a signed offset of 32 bits can say.

    Takes 16 GB of memory for a minute.
    """
    tokenizer = tiny_tokenizer(tmp_path)
    rows, width = 1 << 18, 3 << 10
    config = LlamaConfig(
        vocab_size=rows,
        hidden_size=width,
        head_dim=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
    )
    # Values that no chunk shares with its neighbours, exact in float32.
    pushed = torch.arange(rows, dtype=torch.float32).remainder_(1021.0)[:, None].repeat(1, width)
    folder = save_model(tmp_path, LlamaForCausalLM(config), tokenizer)
    async with replica(folder, weights_dtype=TensorDtype.FLOAT32) as r:
        (name,) = wire_tensors(r.engine.model).keys() & {"model.embed_tokens.weight"}
        tensors = {**wire_tensors(r.engine.model), name: pushed}
        specs = tensor_specs(tensors, TensorDtype.FLOAT32)
        header = PushHeader("run", 1, 0, 1, weights_digest(specs), PushKind.FULL, specs)
        assert max(spec.nbytes for spec in specs) == 3 << 30
        read = [to_bytes(tensors[spec.name], TensorDtype.FLOAT32) for spec in specs]
        await r.client.push_weights(header, read.__getitem__, timeout=600)
        assert r.version == 1
        assert torch.equal(wire_tensors(r.engine.model)[name], pushed)


async def test_a_push_that_breaks_off_leaves_the_old_weights_and_goes_on_where_it_stopped(
    tiny_folders: Folders,
) -> None:
    """S2: broken halfway, then resumed with what is missing only."""
    push = push_of(tiny_folders(seed=5), 1)
    async with replica(tiny_folders(seed=0)) as r:
        before = await sampled(r)
        parts = await messages_of(push, chunk_bytes=SMALL)
        half = len(parts) // 2
        arrived = asyncio.Event()

        async def broken() -> AsyncIterator[pb.PushWeightsRequest]:
            for part in parts[:half]:
                yield part
            arrived.set()
            await asyncio.Event().wait()

        call = r.stub.PushWeights(broken(), timeout=TIMEOUT)
        await asyncio.wait_for(arrived.wait(), TIMEOUT)
        call.cancel()
        status = await r.client.get_push_status(push.header, TIMEOUT)
        assert status.state is PushState.STAGED
        assert status.loaded.version == 0
        assert await sampled(r) == before

        rest = await messages_of(push, status.received_bytes, chunk_bytes=SMALL)
        assert len(rest) < len(parts)
        await r.send(rest)
        status = await r.client.get_push_status(push.header, TIMEOUT)
        assert (status.state, status.loaded.version) == (PushState.APPLIED, 1)
        assert await sampled(r, version=1) != before


async def test_a_push_that_ends_too_early_says_what_is_missing(tiny_folders: Folders) -> None:
    push = push_of(tiny_folders(seed=5), 1)
    async with replica(tiny_folders(seed=0)) as r:
        parts = await messages_of(push)
        with pytest.raises(CallError, match=f"of {push.nbytes} bytes") as caught:
            await r.send(parts[:-1])
        assert caught.value.code is Code.INVALID_ARGUMENT
        status = await r.client.get_push_status(push.header, TIMEOUT)
        assert status.received_bytes[:-1] == tuple(s.nbytes for s in push.header.tensors[:-1])
        assert status.received_bytes[-1] == 0
        assert r.version == 0
        await r.send([parts[0], parts[-1]])
        assert r.version == 1


async def test_a_corrupted_chunk_is_refused_and_the_push_can_go_on(tiny_folders: Folders) -> None:
    """S2: nothing is applied, the version stays, the bytes before the chunk stay too."""
    push = push_of(tiny_folders(seed=5), 1)
    async with replica(tiny_folders(seed=0)) as r:
        before = await sampled(r)
        parts = await messages_of(push, chunk_bytes=SMALL)
        bad = pb.PushWeightsRequest()
        bad.CopyFrom(parts[9])
        bad.chunk.data = bytes(len(bad.chunk.data))
        with pytest.raises(CallError) as caught:
            await r.send([*parts[:9], bad, *parts[10:]])
        assert refusal(caught) == (Code.DATA_LOSS, "PUSH_CHECKSUM_MISMATCH")
        name = push.header.tensors[bad.chunk.tensor_index].name
        assert caught.value.metadata == {"tensor": name}
        assert await sampled(r) == before
        status = await r.client.get_push_status(push.header, TIMEOUT)
        assert (status.state, status.loaded.version) == (PushState.STAGED, 0)
        assert sum(status.received_bytes) == sum(len(p.chunk.data) for p in parts[1:9])
        await r.send(await messages_of(push, status.received_bytes))
        assert r.version == 1


async def test_a_tensor_that_does_not_match_its_checksum_is_refused(tiny_folders: Folders) -> None:
    """S2: sound chunks of other bytes than the header says."""
    push = push_of(tiny_folders(seed=5), 1)
    specs = list(push.header.tensors)
    specs[3] = replace(specs[3], checksum=bytes(16))
    wrong = Push(
        replace(push.header, tensors=tuple(specs), digest=weights_digest(specs)), push.tensors
    )
    async with replica(tiny_folders(seed=0)) as r:
        before = await sampled(r)
        with pytest.raises(CallError) as caught:
            await r.send(await messages_of(wrong))
        assert refusal(caught) == (Code.DATA_LOSS, "PUSH_CHECKSUM_MISMATCH")
        assert caught.value.metadata == {"tensor": specs[3].name}
        status = await r.client.get_push_status(wrong.header, TIMEOUT)
        assert status.received_bytes[3] == 0
        assert (r.version, await sampled(r)) == (0, before)
        await r.push(push)
        assert r.version == 1


async def test_headers_that_do_not_fit_the_model_are_refused_before_any_chunk(
    tiny_folders: Folders,
) -> None:
    push = push_of(tiny_folders(seed=5), 1)
    specs = push.header.tensors
    other = push_of(tiny_folders(seed=5, tie=False), 1)
    cases = {
        "unknown tensor": (other.header.tensors, "header.tensors[0].name", "lm_head.weight"),
        "missing tensor": (specs[:-1], "header.tensors", f"missing: {specs[-1].name}"),
        "wrong shape": (
            (replace(specs[0], shape=(specs[0].shape[0], 17)), *specs[1:]),
            "header.tensors[0].shape",
            "[29, 16]",
        ),
    }
    async with replica(tiny_folders(seed=0)) as r:
        for tensors, field, text in cases.values():
            header = replace(push.header, tensors=tensors, digest=weights_digest(tensors))
            with pytest.raises(CallError) as caught:
                await r.send([push_request_to_proto(header)])
            assert caught.value.code is Code.INVALID_ARGUMENT
            assert [v.field for v in caught.value.violations] == [field]
            assert text in caught.value.message
        with pytest.raises(CallError, match=r"header\.digest"):
            await r.send([push_request_to_proto(replace(push.header, digest=bytes(32)))])
        with pytest.raises(CallError, match="header first"):
            await r.send((await messages_of(push))[1:2])
        with pytest.raises(CallError, match="header first"):
            await r.send([])
        status = await r.client.get_push_status(push.header, TIMEOUT)
        assert status.state is PushState.UNKNOWN
        info = await r.client.get_model_info(TIMEOUT)
        assert (info.bound_run_id, info.loaded.version) == ("", 0)


async def test_the_same_push_again_is_harmless_and_another_digest_is_refused(
    tiny_folders: Folders,
) -> None:
    push, other = push_of(tiny_folders(seed=5), 2), push_of(tiny_folders(seed=6), 2)
    older = push_of(tiny_folders(seed=6), 1)
    async with replica(tiny_folders(seed=0)) as r:
        first = await r.push(push)
        again = await r.push(push)
        assert (again.weights_version, again.digest, again.pause_seconds) == (2, first.digest, 0.0)
        for conflicting in (other, older):
            with pytest.raises(CallError) as caught:
                await r.push(conflicting)
            assert refusal(caught) == (Code.FAILED_PRECONDITION, "PUSH_VERSION_CONFLICT")
            assert caught.value.metadata["loaded_version"] == "2"
        assert r.engine.loaded.digest == push.header.digest


async def test_a_second_stream_of_a_push_replaces_the_first_and_keeps_what_it_brought(
    tiny_folders: Folders,
) -> None:
    push = push_of(tiny_folders(seed=5), 1)
    async with replica(tiny_folders(seed=0)) as r:
        parts = await messages_of(push, chunk_bytes=SMALL)
        sent = asyncio.Event()

        async def stuck() -> AsyncIterator[pb.PushWeightsRequest]:
            for part in parts[:20]:
                yield part
            sent.set()
            await asyncio.Event().wait()

        first = r.stub.PushWeights(stuck(), timeout=TIMEOUT)
        await asyncio.wait_for(sent.wait(), TIMEOUT)
        received: tuple[int, ...] = ()
        while sum(received) < sum(len(p.chunk.data) for p in parts[1:20]):
            received = (await r.client.get_push_status(push.header, TIMEOUT)).received_bytes
        result = await r.send([parts[0], *parts[20:]])
        assert result.weights_version == r.version == 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await first
        assert caught.value.code() is Code.ABORTED
        assert "replaced" in (caught.value.details() or "")


async def test_a_retry_that_meets_an_apply_under_way_waits_for_it(tiny_folders: Folders) -> None:
    """S6: the deadline is shorter than the apply; the push is applied once and answered twice."""
    push = push_of(tiny_folders(seed=5), 1)
    async with replica(tiny_folders(seed=0)) as r:
        hold = Hold(r.engine)
        under_way = asyncio.create_task(r.generate(IDS))
        await hold.entered()
        with pytest.raises(CallError) as caught:
            await r.push(push, timeout=2.0)
        assert caught.value.code is Code.DEADLINE_EXCEEDED
        status = await r.client.get_push_status(push.header, TIMEOUT)
        assert (status.state, status.loaded.version) == (PushState.APPLYING, 0)
        retry = asyncio.create_task(r.send([push_request_to_proto(push.header)]))
        later = asyncio.create_task(r.push(push_of(tiny_folders(seed=6), 2)))
        await r.client.get_model_info(TIMEOUT)
        assert not retry.done()
        assert not later.done()
        hold.release()
        result = await asyncio.wait_for(retry, TIMEOUT)
        assert (result.weights_version, result.digest) == (1, push.header.digest)
        assert result.pause_seconds > 0
        assert (await asyncio.wait_for(later, TIMEOUT)).weights_version == 2
        assert [c.weights_spans for c in await under_way] == [(WeightsSpan(0, 0),)]


async def test_the_clients_own_retry_survives_a_deadline_shorter_than_the_apply(
    tiny_folders: Folders,
) -> None:
    """S6: asked again by the client, the push ends well."""
    push = push_of(tiny_folders(seed=5), 1)
    async with replica(tiny_folders(seed=0)) as r:
        r.client.retry = RetryPolicy(attempts=20, deadline_attempts=20, initial_backoff=0.01)
        hold = Hold(r.engine)
        under_way = asyncio.create_task(r.generate(IDS))
        await hold.entered()
        pushing = asyncio.create_task(r.push(push, timeout=1.5))
        status = await r.client.get_push_status(push.header, TIMEOUT)
        while status.state is not PushState.APPLYING:
            status = await r.client.get_push_status(push.header, TIMEOUT)
        await asyncio.wait({pushing}, timeout=2.5)
        assert not pushing.done()
        hold.release()
        assert (await asyncio.wait_for(pushing, TIMEOUT)).weights_version == 1
        await under_way


async def test_a_higher_incarnation_takes_over_and_the_old_learner_is_told(
    tiny_folders: Folders,
) -> None:
    """S7: version 41 again with other bytes; the woken predecessor neither samples nor pushes."""
    old, new = push_of(tiny_folders(seed=5), 41), push_of(tiny_folders(seed=6), 41, incarnation=2)
    superseded = (Code.FAILED_PRECONDITION, "INCARNATION_SUPERSEDED")
    async with replica(tiny_folders(seed=0)) as r:
        await r.push(old)
        with pytest.raises(CallError) as caught:
            await r.generate(IDS, version=41, incarnation=2)
        assert refusal(caught) == (Code.FAILED_PRECONDITION, "WEIGHTS_FOREIGN")
        await r.push(new)
        assert r.engine.loaded == LoadedWeights("run", 2, 41, new.header.digest)
        assert await sampled(r, version=41, incarnation=2)
        next_one = push_of(tiny_folders(seed=5), 42)
        for call in (r.generate(IDS, version=41), r.push(old), r.push(next_one)):
            with pytest.raises(CallError) as caught:
                await call
            assert refusal(caught) == superseded
            assert caught.value.metadata == {"incarnation": "2"}
        lower = push_of(tiny_folders(seed=5), 3, incarnation=3)
        assert (await r.push(lower)).weights_version == 3


@pytest.mark.parametrize(("applied", "asked"), [(0, 1), (1, 0), (1, 1), (1, 2)])
async def test_a_refused_generate_does_not_take_a_run_over(
    tiny_folders: Folders, applied: int, asked: int
) -> None:
    """S7: whoever may only sample cannot end a run with an incarnation that it made up."""
    async with replica(tiny_folders(seed=0)) as r:
        if applied:
            await r.push(push_of(tiny_folders(seed=5), applied))
        assert await r.generate(IDS, version=applied)
        with pytest.raises(CallError) as caught:
            await r.generate(IDS, version=asked, incarnation=2**62)
        reason = "WEIGHTS_FOREIGN" if applied else "WEIGHTS_MISSING"
        assert refusal(caught) == (Code.FAILED_PRECONDITION, reason)
        assert await r.generate(IDS, version=applied)
        assert (await r.push(push_of(tiny_folders(seed=6), 2))).weights_version == 2


async def test_a_takeover_stops_the_old_learners_push_in_its_middle(tiny_folders: Folders) -> None:
    """S7: what the old one had staged is never applied."""
    old, new = push_of(tiny_folders(seed=5), 1), push_of(tiny_folders(seed=6), 1, incarnation=2)
    async with replica(tiny_folders(seed=0)) as r:
        parts, go = await messages_of(old, chunk_bytes=SMALL), asyncio.Event()
        started = asyncio.Event()

        async def slow() -> AsyncIterator[pb.PushWeightsRequest]:
            for part in parts[:-1]:
                yield part
            started.set()
            await go.wait()
            yield parts[-1]

        call = r.stub.PushWeights(slow(), timeout=TIMEOUT)
        await asyncio.wait_for(started.wait(), TIMEOUT)
        assert await r.generate(IDS, incarnation=2)
        go.set()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is Code.FAILED_PRECONDITION
        assert r.version == 0
        await r.push(new)
        assert r.engine.loaded.incarnation == 2


async def test_another_run_is_refused_while_the_bound_one_holds_its_lease(
    tiny_folders: Folders,
) -> None:
    mine, theirs = push_of(tiny_folders(seed=5), 1), push_of(tiny_folders(seed=6), 1, run="other")
    async with replica(tiny_folders(seed=0)) as r:
        await r.push(mine)
        for call in (r.push(theirs), r.generate(IDS, run="other")):
            with pytest.raises(CallError) as caught:
                await call
            assert refusal(caught) == (Code.FAILED_PRECONDITION, "RUN_LEASE_HELD")
            assert caught.value.metadata["run_id"] == "run"
        assert r.engine.loaded.digest == mine.header.digest
    async with replica(tiny_folders(seed=0), run_lease_seconds=0.0) as r:
        await r.push(mine)
        with pytest.raises(CallError) as caught:
            await r.generate(IDS, run="other")
        assert refusal(caught) == (Code.FAILED_PRECONDITION, "WEIGHTS_FOREIGN")
        await r.push(theirs)
        assert r.engine.loaded == LoadedWeights("other", 1, 1, theirs.header.digest)


async def test_a_swap_that_fails_leaves_no_weights_to_sample_rather_than_half_new_ones(
    tiny_folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2: half-new weights are never served."""
    push = push_of(tiny_folders(seed=5), 1)

    def half(new: object) -> None:
        raise MemoryError("no room in the middle of the swap")

    async with replica(tiny_folders(seed=0)) as r:
        with monkeypatch.context() as patch:
            patch.setattr("antiphon.services.generation.new_weights.NewWeights.put_in", half)
            with pytest.raises(CallError) as caught:
                await r.push(push)
            assert caught.value.code is Code.INTERNAL
        with pytest.raises(CallError) as caught:
            await r.generate(IDS)
        assert refusal(caught) == (Code.FAILED_PRECONDITION, "WEIGHTS_MISSING")
        await r.push(push)
        assert await r.generate(IDS, version=1)
