"""Adapters over real connections: base and adapter are both covered by the digest."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from tests.integration.services.generation.harness import (
    IDS,
    Hold,
    Push,
    Replica,
    push_of,
    refusal,
    replica,
)
from tests.support.lora import adapter_tensors, peft_model

from antiphon.clients.digest import weights_digest
from antiphon.clients.errors import CallError
from antiphon.clients.types import (
    FieldError,
    LoadedWeights,
    PushHeader,
    PushKind,
    TensorDtype,
    WeightsSpan,
)
from antiphon.clients.wire import push_request_to_proto
from antiphon.services.common.lora import adapter_dtype
from antiphon.services.common.models import load_model
from antiphon.services.common.tensors import from_bytes, tensor_specs, to_bytes, wire_tensors
from antiphon.services.generation.engine import PushedTensor

Folders = Callable[..., Path]
BF16, F32 = TensorDtype.BFLOAT16, TensorDtype.FLOAT32


class Adapted:
    """A model folder with an adapter; its weights are those on the wire."""

    def __init__(self, folder: Path, seed: int, wire: TensorDtype = F32, **options: object) -> None:
        self.wire = wire
        base = load_model(folder, dtype=torch.float32)
        self._base = wire_tensors(base)
        for tensor in self._base.values():
            tensor.copy_(from_bytes(to_bytes(tensor, wire), wire, tuple(tensor.shape)))
        self.model: PeftModel = peft_model(base, seed, **options)
        self.tensors = adapter_tensors(self.model)
        for name, tensor in self.tensors.items():
            dtype = adapter_dtype(name, wire)
            tensor.copy_(from_bytes(to_bytes(tensor, dtype), dtype, tuple(tensor.shape)))

    def push(self, version: int, kind: PushKind = PushKind.ADAPTER, **changes: object) -> Push:
        base = tensor_specs(self._base, self.wire)
        adapter = tuple(
            spec
            for name, tensor in self.tensors.items()
            for spec in tensor_specs({name: tensor}, adapter_dtype(name, self.wire))
        )
        result = tuple(sorted((*base, *adapter), key=lambda spec: spec.name))
        header = PushHeader(
            run_id="run",
            incarnation=1,
            agent=0,
            version=version,
            digest=weights_digest(result),
            kind=kind,
            tensors=adapter if kind is PushKind.ADAPTER else result,
            base_digest=weights_digest(base),
        )
        tensors = {**self._base, **self.tensors}
        data = [
            memoryview(bytes(to_bytes(tensors[spec.name], spec.dtype))) for spec in header.tensors
        ]
        return Push(replace(header, **changes), data)

    def greedy(self, tokens: int = 8) -> tuple[int, ...]:
        """What the model itself says, without a cache."""
        ids = list(IDS.ids)
        for _ in range(tokens):
            with torch.no_grad():
                token = int(self.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
            ids.append(token)
            if token == self.model.config.eos_token_id:
                break
        return tuple(ids[len(IDS.ids) :])


async def sampled(r: Replica, version: int = 0) -> tuple[int, ...]:
    return (await r.generate(IDS, version=version))[0].token_ids


@pytest.mark.parametrize("wire", [BF16, F32])
@pytest.mark.parametrize("options", [{}, {"targets": ["q_proj", "lm_head"]}])
async def test_a_service_with_an_adapter_samples_what_the_adapted_model_says(
    tiny_folders: Folders, wire: TensorDtype, options: dict[str, object]
) -> None:
    """Adapters that follow each other, on a base that stays bitwise the same."""
    folder = tiny_folders(seed=0)
    first, second = Adapted(folder, 1, wire, **options), Adapted(folder, 2, wire, r=2)
    async with replica(folder, weights_dtype=wire) as r:
        plain = await sampled(r)
        base = copy.deepcopy(r.engine.model.state_dict())
        for version, adapted in enumerate((first, second, first), start=1):
            push = adapted.push(version)
            result = await r.push(push)
            assert (result.weights_version, result.digest) == (version, push.header.digest)
            assert await sampled(r, version) == adapted.greedy()
        assert len({plain, first.greedy(), second.greedy()}) == 3
        assert all(torch.equal(t, base[n]) for n, t in r.engine.model.state_dict().items())


async def test_a_service_without_weights_takes_base_and_adapter_in_one_push(
    tiny_folders: Folders,
) -> None:
    adapted = Adapted(tiny_folders(seed=0), 1)
    async with replica(tiny_folders(seed=0), weights=False) as r:
        with pytest.raises(CallError) as caught:
            await r.push(adapted.push(1))
        assert refusal(caught)[1] == "PUSH_BASE_MISMATCH"
        whole = adapted.push(1, PushKind.FULL)
        await r.push(whole)
        assert await sampled(r, 1) == adapted.greedy()
        assert r.engine.loaded.digest == whole.header.digest == adapted.push(9).header.digest
        other = Adapted(tiny_folders(seed=0), 2)
        await r.push(other.push(2))
        assert await sampled(r, 2) == other.greedy()


async def test_a_full_push_without_an_adapter_leaves_none(tiny_folders: Folders) -> None:
    folder = tiny_folders(seed=0)
    async with replica(folder, weights_dtype=F32) as r:
        plain = await sampled(r)
        await r.push(Adapted(folder, 1).push(1))
        assert await sampled(r, 1) != plain
        await r.push(push_of(folder, 2))
        assert await sampled(r, 2) == plain


async def test_an_adapter_of_another_base_is_refused_and_the_old_weights_serve(
    tiny_folders: Folders,
) -> None:
    """S2: the version stays. A base that came with an adapter is the base all the same."""
    folder = tiny_folders(seed=0)
    own, foreign = Adapted(folder, 1), Adapted(tiny_folders(seed=5), 1)
    async with replica(folder, weights_dtype=F32) as r:
        await r.push(own.push(1))
        for wrong in (foreign.push(2), own.push(2, base_digest=r.engine.loaded.digest)):
            with pytest.raises(CallError) as caught:
                await r.push(wrong)
            assert refusal(caught)[1] == "PUSH_BASE_MISMATCH"
            assert caught.value.metadata["loaded_version"] == "1"
        assert (r.version, await sampled(r, 1)) == (1, own.greedy())
        await r.push(foreign.push(2, PushKind.FULL))
        assert await sampled(r, 2) == foreign.greedy()
        await r.push(foreign.push(3))
        assert r.version == 3


async def test_the_digest_of_an_adapter_covers_its_base(tiny_folders: Folders) -> None:
    adapted = Adapted(tiny_folders(seed=0), 1)
    push = adapted.push(1)
    alone = replace(push.header, digest=weights_digest(push.header.tensors))
    async with replica(tiny_folders(seed=0), weights_dtype=F32) as r:
        with pytest.raises(CallError, match=r"header\.digest.*that of the loaded base and"):
            await r.push(Push(alone, push.tensors))
        assert r.version == 0
        await r.push(push)
        again = await r.push(push)
        assert (again.weights_version, again.pause_seconds) == (1, 0.0)


async def test_an_adapter_that_does_not_fit_the_model_is_refused_by_name(
    tiny_folders: Folders,
) -> None:
    folder = tiny_folders(seed=0)
    push = Adapted(folder, 1).push(1)
    specs = push.header.tensors
    async with replica(folder, weights_dtype=F32) as r:
        for tensors, text in (
            (specs[1:], "without lora_A"),
            ((*specs, *push_of(folder, 1).header.tensors), "adapter's tensors alone"),
        ):
            ordered = tuple(sorted(tensors, key=lambda spec: spec.name))
            with pytest.raises(CallError, match=text) as caught:
                await r.send([push_request_to_proto(replace(push.header, tensors=ordered))])
            assert [v.field for v in caught.value.violations] == ["header.tensors"]
        assert r.version == 0


async def test_weights_with_half_an_adapter_replace_nothing(tiny_folders: Folders) -> None:
    """S2: refused before the first tensor is written, not between the model's and the adapter's."""
    push = Adapted(tiny_folders(seed=5), 1).push(1, PushKind.FULL)
    half = [
        PushedTensor(spec, data)
        for spec, data in zip(push.header.tensors, push.tensors, strict=True)
        if not spec.name.endswith("lora_A.weight")
    ]
    async with replica(tiny_folders(seed=0), weights_dtype=F32) as r:
        before, loaded = tensor_specs(wire_tensors(r.engine.model), F32), r.engine.loaded
        with pytest.raises(FieldError, match="without lora_A"):
            await r.engine.apply(half, LoadedWeights("run", 1, 1, push.header.digest))
        assert r.engine.loaded == loaded
        assert tensor_specs(wire_tensors(r.engine.model), F32) == before


async def test_a_completion_under_way_ends_under_the_adapter_that_it_began_with(
    tiny_folders: Folders,
) -> None:
    folder = tiny_folders(seed=0)
    adapted = Adapted(folder, 1)
    async with replica(folder, weights_dtype=F32) as r:
        plain = await sampled(r)
        hold = Hold(r.engine)
        under_way = asyncio.create_task(r.generate(IDS))
        await hold.entered()
        pushing = asyncio.create_task(r.push(adapted.push(1)))
        await r.client.get_model_info(60.0)
        hold.release()
        (completion,) = await under_way
        assert (completion.token_ids, completion.weights_spans) == (plain, (WeightsSpan(0, 0),))
        await pushing
        assert await sampled(r, 1) == adapted.greedy()
