"""New weights in the transformers engine, between completions and in the middle of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from tests.support.engines import (
    V7,
    Folders,
    Watched,
    complete,
    pushed,
    queued,
    request,
    running,
    sampling,
)

from antiphon.clients.types import LoadedWeights, TensorDtype, WeightsSpan
from antiphon.services.common.models import load_model
from antiphon.services.common.tensors import wire_tensors


@pytest.mark.parametrize("tie", [True, False])
async def test_after_a_swap_completions_are_those_of_the_new_weights(
    tiny_folders: Folders, tie: bool
) -> None:
    """S4: nothing computed under the old weights is used again, tied heads included."""
    old, new = tiny_folders(seed=0, tie=tie), tiny_folders(seed=5, tie=tie)
    work = request(full=True)
    async with running(new, weights_dtype=TensorDtype.FLOAT32) as engine:
        wanted = await complete(engine, work)
    async with running(old) as engine:
        before = await complete(engine, work)
        pause = await engine.apply(pushed(new), V7)
        after = await complete(engine, work)
        assert engine.loaded == V7
    assert 0 < pause < 60
    assert [c.token_ids for c in after] == [c.token_ids for c in wanted]
    assert [c.logprobs for c in after] == [c.logprobs for c in wanted]
    assert [c.token_ids for c in after] != [c.token_ids for c in before]
    assert {c.weights_spans for c in after} == {(WeightsSpan(0, 7),)}


async def test_with_finish_a_swap_waits_for_the_completions_under_way(
    tiny_folders: Folders,
) -> None:
    work = request(samples=3, parameters=sampling(max_new_tokens=40))
    async with running(tiny_folders(seed=0), max_batch_size=4) as engine:
        undisturbed = await complete(engine, work)
        watched = Watched(engine, hold_at=0)
        task = asyncio.create_task(complete(engine, work))
        await watched.held()
        swap = asyncio.create_task(engine.apply(pushed(tiny_folders(seed=5)), V7))
        await queued(1)
        later = asyncio.create_task(complete(engine, work))
        await asyncio.sleep(0)
        assert engine.loaded.version == 0
        watched.release()
        assert await asyncio.wait_for(task, 60) == undisturbed
        await asyncio.wait_for(swap, 60)
        assert {c.weights_spans for c in await later} == {(WeightsSpan(0, 7),)}


async def test_with_continue_completions_go_on_under_the_new_weights_with_a_new_cache(
    tiny_folders: Folders,
) -> None:
    """S4: after the swap every token is that of the new weights on prompt and tokens so far."""
    old, new = tiny_folders(seed=0), tiny_folders(seed=5)
    work = request(samples=2, parameters=sampling(max_new_tokens=30))
    async with running(old, on_swap="continue") as engine:
        watched = Watched(engine, hold_at=6)
        task = asyncio.create_task(complete(engine, work))
        await watched.held()
        swap = asyncio.create_task(engine.apply(pushed(new), V7))
        await queued(1)
        watched.release()
        pause = await asyncio.wait_for(swap, 60)
        got = await asyncio.wait_for(task, 60)
        assert pause > 0
        models = {0: load_model(old, dtype=torch.float32), 7: load_model(new, dtype=torch.float32)}
        for tensor in wire_tensors(models[0]).values():
            tensor.copy_(tensor.bfloat16().float())
    switched = [c for c in got if len(c.weights_spans) == 2]
    assert switched
    assert {c.weights_spans[1].start for c in switched} == {7}
    for c in got:
        assert [span.weights_version for span in c.weights_spans] in ([0], [0, 7])
        for position, logprob in enumerate(c.logprobs):
            version = next(
                span.weights_version for span in reversed(c.weights_spans) if span.start <= position
            )
            row = torch.tensor([[*c.prompt_token_ids, *c.token_ids[:position]]])
            with torch.no_grad():
                wanted = models[version](row).logits[0, -1].log_softmax(-1)
            assert logprob == pytest.approx(float(wanted[c.token_ids[position]]), abs=1e-4)


@pytest.mark.parametrize("on_swap", ["finish", "continue"])
async def test_weights_are_admitted_when_they_are_about_to_sample(
    tiny_folders: Folders, on_swap: Any
) -> None:
    """A swap between a request's arrival and its turn, or in its middle, is not slept through."""
    seen: list[int] = []

    def admit(loaded: LoadedWeights) -> None:
        seen.append(loaded.version)
        if loaded.version:
            raise PermissionError("foreign weights")

    async with running(tiny_folders(seed=0), on_swap=on_swap) as engine:
        watched = Watched(engine, hold_at=0)
        work = request(samples=1, admit=admit, parameters=sampling(max_new_tokens=60))
        first = asyncio.create_task(complete(engine, work))
        await watched.held()
        swap = asyncio.create_task(engine.apply(pushed(tiny_folders(seed=5)), V7))
        await queued(1)
        second = asyncio.create_task(complete(engine, work))
        await asyncio.sleep(0)
        watched.release()
        await asyncio.wait_for(swap, 60)
        with pytest.raises(PermissionError):
            await asyncio.wait_for(second, 60)
        if on_swap == "finish":
            assert len(await first) == 4
            assert seen == [0, 7]
        else:
            with pytest.raises(PermissionError):
                await first
            assert seen == [0, 7, 7]
