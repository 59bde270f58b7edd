"""Deltas over real connections: proved bit for bit, from the right base only, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
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

from antiphon.clients.digest import tensor_checksum, weights_digest
from antiphon.clients.errors import CallError
from antiphon.clients.retry import RetryPolicy
from antiphon.clients.types import (
    LoadedWeights,
    PushKind,
    PushState,
    TensorDtype,
    TensorSpec,
    WeightsSpan,
)
from antiphon.clients.wire import push_request_to_proto
from antiphon.services.common.changes import ChangeEncoder, best_exponent, patterns
from antiphon.services.common.models import load_model
from antiphon.services.common.tensors import to_bytes, wire_tensors
from antiphon.v1 import generation_pb2 as pb

Folders = Callable[..., Path]
Code = grpc.StatusCode
BF16 = TensorDtype.BFLOAT16
SMALL = 64  # Bytes of a chunk: parts nearly every change.


def full_of(folder: Path, version: int, dtype: TensorDtype = BF16, **changes: object) -> Push:
    return push_of(folder, version, dtype=dtype, **changes)


def moved(push: Push, version: int, seed: int = 0, share: float = 0.1) -> Push:
    """Other weights: about this share of the elements differs, the last tensor's not at all."""
    generator = np.random.default_rng(seed)
    tensors, specs = [], []
    for index, (spec, data) in enumerate(zip(push.header.tensors, push.tensors, strict=True)):
        new = patterns(bytearray(data), spec.dtype)
        if index < len(push.tensors) - 1:
            picked = generator.random(len(new)) < share
            new[picked] ^= generator.integers(1, 4, picked.sum()).astype(new.dtype)
        tensors.append(memoryview(new.tobytes()))
        specs.append(replace(spec, checksum=tensor_checksum(tensors[-1])))
    header = replace(
        push.header, version=version, tensors=tuple(specs), digest=weights_digest(specs)
    )
    return Push(header, tensors)


def delta(base: Push, new: Push) -> Push:
    """The push of `new` to who has applied `base`."""
    encoded = []
    for spec, old, now in zip(new.header.tensors, base.tensors, new.tensors, strict=True):
        one, two = patterns(old, spec.dtype), patterns(now, spec.dtype)
        encoder = ChangeEncoder(best_exponent(one, two))
        encoder.add(one, two)
        encoded.append(memoryview(encoder.finish()))
    header = replace(
        new.header,
        kind=PushKind.DELTA,
        base_version=base.header.version,
        base_digest=base.header.digest,
        delta_sizes=tuple(part.nbytes for part in encoded),
    )
    return Push(header, encoded)


def loaded(r: Replica, dtype: TensorDtype = BF16) -> list[bytes]:
    return [bytes(to_bytes(tensor, dtype)) for tensor in wire_tensors(r.engine.model).values()]


async def sampled(r: Replica, version: int) -> list[object]:
    got = await r.generate(IDS, samples=4, temperature=1.0, version=version)
    return sorted((c.sample_index, c.token_ids, c.logprobs) for c in got)


@pytest.mark.parametrize("dtype", list(TensorDtype))
@pytest.mark.parametrize("tie", [True, False])
async def test_a_delta_leaves_bitwise_what_a_full_push_would(
    tiny_folders: Folders, dtype: TensorDtype, tie: bool
) -> None:
    """S4: tied heads included, with nothing left of the cache before it."""
    start = tiny_folders(seed=0, tie=tie)
    base = full_of(tiny_folders(seed=5, tie=tie), 1, dtype)
    new = moved(base, 2)
    push = delta(base, new)
    assert push.header.delta_sizes[-1] == 0
    async with replica(start) as one, replica(start) as other:
        await one.push(base)
        await sampled(one, 1)
        result = await one.push(push)
        await other.push(new)
        assert (result.weights_version, result.digest) == (2, new.header.digest)
        assert 0 < result.pause_seconds < TIMEOUT
        assert loaded(one, dtype) == loaded(other, dtype) == [bytes(data) for data in new.tensors]
        assert await sampled(one, 2) == await sampled(other, 2)
        assert one.engine.base == new.header.tensors
        info = await one.client.get_model_info(TIMEOUT)
        assert PushKind.DELTA in info.capabilities.push_kinds
        assert info.loaded == LoadedWeights("run", 1, 2, new.header.digest)


@pytest.mark.parametrize(
    ("dtype", "taken"), [(BF16, {BF16}), (TensorDtype.FLOAT32, set(TensorDtype))]
)
async def test_an_engine_says_in_which_number_formats_it_takes_deltas(
    tiny_folders: Folders, dtype: TensorDtype, taken: set[TensorDtype]
) -> None:
    """One that holds bf16 has not every bit of float32, so that it could not prove a delta."""
    async with replica(tiny_folders(seed=0), dtype=dtype) as r:
        info = await r.client.get_model_info(TIMEOUT)
    assert info.capabilities.delta_dtypes == taken


async def test_an_empty_delta_takes_weights_that_are_there_as_a_version(
    tiny_folders: Folders,
) -> None:
    """The first push of a run whose service has started from the same weights."""
    start = replace(full_of(tiny_folders(seed=0), 0))
    push = delta(start, full_of(tiny_folders(seed=0), 1))
    assert set(push.header.delta_sizes) == {0}
    async with replica(tiny_folders(seed=0)) as r:
        result = await r.push(push)
        assert result.weights_version == r.version == 1
        assert r.engine.loaded.digest == start.header.digest
        again = await r.push(push)
        assert again.pause_seconds == 0


async def test_deltas_follow_one_another_from_version_to_version(tiny_folders: Folders) -> None:
    pushes = [full_of(tiny_folders(seed=5), 1)]
    async with replica(tiny_folders(seed=0)) as r:
        await r.push(pushes[0])
        for version in range(2, 6):
            pushes.append(moved(pushes[-1], version, seed=version))
            await r.push(delta(pushes[-2], pushes[-1]))
        assert loaded(r) == [bytes(data) for data in pushes[-1].tensors]
        assert r.version == 5


async def test_a_change_larger_than_a_message_arrives_in_chunks(tmp_path: Path) -> None:
    """S1: the change of one tensor takes more than gRPC's 4 MiB."""
    config = LlamaConfig(
        vocab_size=1 << 18,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    folder = save_model(tmp_path / "model", LlamaForCausalLM(config), tokenizer)
    base = full_of(folder, 1)
    new = moved(base, 2)
    embedding = [spec.name for spec in base.header.tensors].index("model.embed_tokens.weight")
    noise = np.random.default_rng(0).integers(0, 1 << 16, 1 << 22).astype(np.uint16)
    new.tensors[embedding] = memoryview((noise & 0xBFFF).tobytes())  # Finite, below 2 each.
    specs = list(new.header.tensors)
    specs[embedding] = replace(specs[embedding], checksum=tensor_checksum(new.tensors[embedding]))
    new = Push(replace(new.header, tensors=tuple(specs), digest=weights_digest(specs)), new.tensors)
    push = delta(base, new)
    assert push.tensors[embedding].nbytes > 1 << 22
    async with replica(folder) as r:
        await r.push(base)
        await r.push(push)
        assert loaded(r)[embedding] == new.tensors[embedding]


async def test_a_delta_that_breaks_off_leaves_the_old_weights_and_goes_on_where_it_stopped(
    tiny_folders: Folders,
) -> None:
    """S2: half a delta is never served, and what arrived is not sent again."""
    base = full_of(tiny_folders(seed=5), 1)
    new = moved(base, 2)
    push = delta(base, new)
    async with replica(tiny_folders(seed=0)) as r:
        await r.push(base)
        before = await sampled(r, 1)
        parts = await messages_of(push, chunk_bytes=SMALL)
        half, arrived = len(parts) // 2, asyncio.Event()

        async def broken() -> AsyncIterator[pb.PushWeightsRequest]:
            for part in parts[:half]:
                yield part
            arrived.set()
            await asyncio.Event().wait()

        call = r.stub.PushWeights(broken(), timeout=TIMEOUT)
        await asyncio.wait_for(arrived.wait(), TIMEOUT)
        status = await r.client.get_push_status(push.header, TIMEOUT)
        while sum(status.received_bytes) < sum(len(p.chunk.data) for p in parts[1:half]):
            status = await r.client.get_push_status(push.header, TIMEOUT)
        call.cancel()
        assert (status.state, status.loaded.version) == (PushState.STAGED, 1)
        assert await sampled(r, 1) == before
        # The same weights in a full push are another push: nothing of it has arrived.
        whole = await r.client.get_push_status(new.header, TIMEOUT)
        assert whole.state is PushState.UNKNOWN
        rest = await messages_of(push, status.received_bytes, chunk_bytes=SMALL)
        assert len(rest) < len(parts)
        await r.send(rest)
        assert loaded(r) == [bytes(data) for data in new.tensors]
        assert r.version == 2


async def test_a_full_push_after_half_a_delta_of_the_same_weights_is_taken_whole(
    tiny_folders: Folders,
) -> None:
    base = full_of(tiny_folders(seed=5), 1)
    new = moved(base, 2)
    async with replica(tiny_folders(seed=0)) as r:
        await r.push(base)
        parts = await messages_of(delta(base, new), chunk_bytes=SMALL)
        with pytest.raises(CallError):
            await r.send(parts[:9])
        await r.push(new)
        assert loaded(r) == [bytes(data) for data in new.tensors]


async def test_a_delta_from_another_base_is_refused_with_what_is_loaded(
    tiny_folders: Folders,
) -> None:
    """S2, S3: a restarted replica, another version, other bytes of that version, no weights."""
    base, other = full_of(tiny_folders(seed=5), 1), full_of(tiny_folders(seed=6), 1)
    push = delta(base, moved(base, 2))
    mismatch = (Code.FAILED_PRECONDITION, "PUSH_BASE_MISMATCH")
    async with replica(tiny_folders(seed=0)) as r:
        before = loaded(r)
        for wrong in (
            push,
            Push(replace(push.header, base_version=0), push.tensors),
            Push(replace(push.header, base_digest=other.header.digest), push.tensors),
        ):
            with pytest.raises(CallError) as caught:
                await r.push(wrong)
            assert refusal(caught) == mismatch
            assert caught.value.metadata["loaded_version"] == "0"
            assert caught.value.metadata["loaded_digest"] == r.engine.loaded.digest.hex()
        assert (r.version, loaded(r)) == (0, before)
        await r.push(other)
        with pytest.raises(CallError) as caught:
            await r.push(push)
        assert refusal(caught) == mismatch
        assert r.engine.loaded.digest == other.header.digest
    async with replica(tiny_folders(seed=0), weights=False) as r:
        nothing = replace(push.header, base_version=0, base_digest=b"")
        with pytest.raises(CallError) as caught:
            await r.push(Push(nothing, push.tensors))
        assert refusal(caught) == mismatch


async def test_a_corrupted_chunk_of_a_delta_is_sent_again(tiny_folders: Folders) -> None:
    """S2: nothing is applied, what came before it is kept."""
    base = full_of(tiny_folders(seed=5), 1)
    new = moved(base, 2)
    push = delta(base, new)
    async with replica(tiny_folders(seed=0)) as r:
        await r.push(base)
        parts = await messages_of(push, chunk_bytes=SMALL)
        bad = pb.PushWeightsRequest()
        bad.CopyFrom(parts[5])
        bad.chunk.data = bytes(len(bad.chunk.data))
        with pytest.raises(CallError) as caught:
            await r.send([*parts[:5], bad])
        assert refusal(caught) == (Code.DATA_LOSS, "PUSH_CHECKSUM_MISMATCH")
        status = await r.client.get_push_status(push.header, TIMEOUT)
        assert sum(status.received_bytes) == sum(len(p.chunk.data) for p in parts[1:5])
        await r.send(await messages_of(push, status.received_bytes))
        assert loaded(r) == [bytes(data) for data in new.tensors]


async def test_a_result_that_does_not_match_its_checksum_is_not_applied(
    tiny_folders: Folders,
) -> None:
    """S2: sound chunks of another change than the header's tensors say."""
    base = full_of(tiny_folders(seed=5), 1)
    new, other = moved(base, 2), moved(base, 2, seed=1)
    push, wrong = delta(base, new), delta(base, other)
    header = replace(push.header, delta_sizes=wrong.header.delta_sizes)
    async with replica(tiny_folders(seed=0)) as r:
        await r.push(base)
        before = loaded(r)
        with pytest.raises(CallError) as caught:
            await r.push(Push(header, wrong.tensors))
        assert refusal(caught) == (Code.FAILED_PRECONDITION, "PUSH_BASE_MISMATCH")
        assert caught.value.metadata == {"tensor": header.tensors[0].name}
        assert (r.version, loaded(r)) == (1, before)
        await r.push(push)
        assert loaded(r) == [bytes(data) for data in new.tensors]


async def test_an_engine_that_holds_fewer_bits_than_the_wire_asks_for_all_at_once(
    tiny_folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2: the same delta could never fit, so it is not sent again; a full push is taken."""
    base = full_of(tiny_folders(seed=5), 1, TensorDtype.FLOAT32)
    new = moved(base, 2)
    async with replica(tiny_folders(seed=0), dtype=BF16) as r:
        await r.push(base)
        r.client.retry = RetryPolicy(attempts=5, initial_backoff=0.01)
        tries, own = [], r.engine.own_tensors
        monkeypatch.setattr(r.engine, "own_tensors", lambda: tries.append(1) or own())
        with pytest.raises(CallError, match="push FULL instead") as caught:
            await r.push(delta(base, new))
        assert refusal(caught) == (Code.FAILED_PRECONDITION, "PUSH_BASE_MISMATCH")
        assert "loaded_version" not in caught.value.metadata
        assert len(tries) == 1
        assert r.engine.loaded.digest == base.header.digest
        await r.push(new)
        assert r.engine.loaded.digest == new.header.digest


async def test_a_delta_that_names_an_adapters_tensor_is_refused_by_field(
    tiny_folders: Folders,
) -> None:
    """S17: a change of the model's own tensors brings no adapter along."""
    base = full_of(tiny_folders(seed=5), 1)
    header = delta(base, moved(base, 2)).header
    layer = "model.layers.0.self_attn.q_proj"
    width = next(s.shape for s in header.tensors if s.name == f"{layer}.weight")
    shapes = {".lora_A.weight": (1, width[1]), ".lora_B.weight": (width[0], 1), ".lora_scaling": ()}
    sizes = {spec.name: size for spec, size in zip(header.tensors, header.delta_sizes, strict=True)}
    adapter = [
        TensorSpec(layer + suffix, BF16, shape, bytes(16)) for suffix, shape in shapes.items()
    ]
    specs = tuple(sorted((*header.tensors, *adapter), key=lambda spec: spec.name))
    wrong = replace(
        header,
        tensors=specs,
        digest=weights_digest(specs),
        delta_sizes=tuple(sizes.get(spec.name, 4) for spec in specs),
    )
    async with replica(tiny_folders(seed=0)) as r:
        await r.push(base)
        with pytest.raises(CallError, match="the model's own tensors alone") as caught:
            await r.send([push_request_to_proto(wrong)])
        assert [v.field for v in caught.value.violations] == ["header.tensors"]
        assert r.version == 1


async def test_bytes_that_are_no_delta_and_headers_that_fit_none_are_named(
    tiny_folders: Folders,
) -> None:
    """S17: refused by field; the old weights stay."""
    base = full_of(tiny_folders(seed=5), 1)
    push = delta(base, moved(base, 2))
    header, first = push.header, push.header.tensors[0]
    rest = header.tensors[1:]
    other = replace(first, checksum=bytes(16))
    wide = replace(first, dtype=TensorDtype.FLOAT32)
    sizes = header.delta_sizes
    headers = {
        "header.tensors[0].checksum": replace(
            header, tensors=(other, *rest), delta_sizes=(0, *sizes[1:])
        ),
        "header.tensors[0].dtype": replace(header, tensors=(wide, *rest)),
        "header.delta_sizes": replace(header, delta_sizes=(1 << 40, *sizes[1:])),
    }
    async with replica(tiny_folders(seed=0)) as r:
        await r.push(base)
        before = loaded(r)
        for field, wrong in headers.items():
            fitting = replace(wrong, digest=weights_digest(wrong.tensors))
            with pytest.raises(CallError) as caught:
                await r.send([push_request_to_proto(fitting)])
            assert [v.field for v in caught.value.violations] == [field]
        noise = Push(header, [memoryview(bytes(part.nbytes)) for part in push.tensors])
        with pytest.raises(CallError, match="one of its frames") as caught:
            await r.push(noise)
        assert caught.value.code is Code.INVALID_ARGUMENT
        assert (r.version, loaded(r)) == (1, before)


async def test_a_retry_that_meets_a_delta_being_applied_waits_for_it(
    tiny_folders: Folders,
) -> None:
    """S6: the deadline is shorter than the apply; applied once, answered when done."""
    base = full_of(tiny_folders(seed=5), 1)
    new = moved(base, 2)
    push = delta(base, new)
    async with replica(tiny_folders(seed=0)) as r:
        await r.push(base)
        r.client.retry = RetryPolicy(attempts=20, deadline_attempts=20, initial_backoff=0.01)
        hold = Hold(r.engine)
        under_way = asyncio.create_task(r.generate(IDS, version=1))
        await hold.entered()
        pushing = asyncio.create_task(r.push(push, timeout=1.0))
        status = await r.client.get_push_status(push.header, TIMEOUT)
        while status.state is not PushState.APPLYING:
            status = await r.client.get_push_status(push.header, TIMEOUT)
        await asyncio.wait({pushing}, timeout=1.5)
        assert not pushing.done()
        hold.release()
        assert (await asyncio.wait_for(pushing, TIMEOUT)).weights_version == 2
        assert [c.weights_spans for c in await under_way] == [(WeightsSpan(0, 1),)]
        assert loaded(r) == [bytes(data) for data in new.tensors]
        again = await r.push(push)
        assert (again.weights_version, again.pause_seconds) == (2, 0)


async def test_a_change_that_fails_in_its_middle_leaves_no_weights_to_sample(
    tiny_folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2: half-new weights are never served; a full push brings the service back."""
    base = full_of(tiny_folders(seed=5), 1)
    new = moved(base, 2)

    async with replica(tiny_folders(seed=0)) as r:
        await r.push(base)
        with monkeypatch.context() as patch:

            def fails(*_: object) -> None:
                raise MemoryError("no room in the middle of the swap")

            patch.setattr(torch.Tensor, "put_", fails)
            with pytest.raises(CallError) as caught:
                await r.push(delta(base, new))
            assert caught.value.code is Code.INTERNAL
        with pytest.raises(CallError) as caught:
            await r.generate(IDS)
        assert refusal(caught) == (Code.FAILED_PRECONDITION, "WEIGHTS_MISSING")
        with pytest.raises(CallError) as caught:
            await r.push(delta(base, new))
        assert refusal(caught) == (Code.FAILED_PRECONDITION, "PUSH_BASE_MISMATCH")
        await r.push(new)
        assert loaded(r) == [bytes(data) for data in new.tensors]


async def test_the_learners_model_and_the_services_are_one_after_a_delta(
    tiny_folders: Folders,
) -> None:
    """The engine computes with the changed weights, as the same model does elsewhere."""
    base = full_of(tiny_folders(seed=5), 1)
    new = moved(base, 2)
    async with replica(tiny_folders(seed=0)) as r:
        await r.push(base)
        await r.push(delta(base, new))
        got = await r.generate(IDS, version=2)
    model, ids = load_model(tiny_folders(seed=5), dtype=torch.float32), list(IDS.ids)
    for tensor, data in zip(wire_tensors(model).values(), new.tensors, strict=True):
        values = torch.frombuffer(bytearray(data), dtype=torch.bfloat16)
        tensor.copy_(values.reshape(tensor.shape).float())
    wanted = []
    for _ in got[0].token_ids:
        with torch.no_grad():
            wanted.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        ids.append(wanted[-1])
    assert list(got[0].token_ids) == wanted
