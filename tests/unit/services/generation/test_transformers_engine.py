"""The engine against a forward without cache and sampling written out by hand."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest
import torch
from tests.support.engines import (
    PROMPTS,
    V7,
    Folders,
    Watched,
    complete,
    make,
    pushed,
    queued,
    request,
    running,
    sampling,
)
from transformers import AutoModelForCausalLM, Gemma3TextConfig, GPT2Config, Qwen3MoeConfig

from antiphon.clients.digest import weights_digest
from antiphon.clients.types import (
    FinishReason,
    LoadedWeights,
    SamplingParameters,
    TensorDtype,
    TokenIds,
    WeightsSpan,
)
from antiphon.services.common.models import end_token_ids, load_model, load_tokenizer
from antiphon.services.common.sampling import seeds_tensor, uniform
from antiphon.services.common.tensors import tensor_specs, wire_tensors
from antiphon.services.generation.engine import EngineRequest
from antiphon.services.generation.transformers_engine import TransformersEngine


def by_hand(
    model: Any, ends: Sequence[int], work: EngineRequest, prompt: int, sample: int
) -> dict[str, list[Any]]:
    """One completion, token after token, each from a whole forward of one row without cache."""
    entry, parameters = work.prompts[prompt], work.sampling
    answer: dict[str, list[Any]] = {"ids": [], "logprobs": [], "kept": [], "full": [], "full1": []}
    while len(answer["ids"]) < parameters.max_new_tokens:
        row = torch.tensor([[*entry.token_ids, *answer["ids"]]])
        with torch.no_grad():
            logits = model(row, use_cache=False).logits[0, -1].double().tolist()
        scaled = [value / parameters.temperature for value in logits]
        order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
        if parameters.top_k is not None:
            order = order[: parameters.top_k]
        total, mass, kept = sum(math.exp(scaled[i]) for i in order), 0.0, []
        for i in order:
            kept.append(i)
            mass += math.exp(scaled[i]) / total
            if parameters.top_p is not None and mass >= parameters.top_p:
                break
        if len(kept) == len(scaled):
            kept.sort()
        total = sum(math.exp(scaled[i]) for i in kept)
        position = torch.tensor([len(answer["ids"])])
        target = float(uniform(seeds_tensor([entry.seeds[sample]]), position)[0])
        mass = 0.0
        for token in kept:
            mass += math.exp(scaled[token]) / total
            if mass > target:
                break
        answer["ids"].append(token)
        answer["logprobs"].append(scaled[token] - math.log(total))
        answer["kept"].append(len(kept))
        answer["full"].append(scaled[token] - math.log(sum(math.exp(v) for v in scaled)))
        answer["full1"].append(logits[token] - math.log(sum(math.exp(v) for v in logits)))
        if token in ends:
            break
    return answer


@pytest.mark.parametrize(
    "parameters",
    [sampling(), sampling(0.6, 10, 0.8), sampling(1.3, None, 0.9), sampling(0.8, 5)],
)
async def test_batched_completions_are_those_of_single_rows_without_cache(
    tiny_folders: Folders, parameters: SamplingParameters
) -> None:
    """L3, L7, L16: end ids, log-probabilities and lengths, with rows of several lengths."""
    work = request(parameters=parameters, full=True)
    async with running(tiny_folders(seed=0, two_ends=True)) as engine:
        got = await complete(engine, work)
        ends = end_token_ids(engine.model, load_tokenizer(engine.info.model))
        assert len(ends) == 2
        assert {(c.prompt_index, c.sample_index) for c in got} == {
            (p, s) for p in range(4) for s in range(6)
        }
        for c in got:
            wanted = by_hand(engine.model, ends, work, c.prompt_index, c.sample_index)
            assert list(c.token_ids) == wanted["ids"]
            assert c.logprobs == pytest.approx(wanted["logprobs"], abs=1e-4)
            assert list(c.kept_sizes) == wanted["kept"]
            assert c.full_logprobs == pytest.approx(wanted["full"], abs=1e-4)
            assert c.full_logprobs_temperature_1 == pytest.approx(wanted["full1"], abs=1e-4)
            assert c.prompt_token_ids == PROMPTS[c.prompt_index]
            assert c.weights_spans == (WeightsSpan(0, 0),)
            ended = c.token_ids[-1] in ends
            assert c.finish_reason is (FinishReason.END_TOKEN if ended else FinishReason.LENGTH)
            assert ended or len(c.token_ids) == 12


async def test_each_end_id_ends_a_completion_and_is_its_last_token(tiny_folders: Folders) -> None:
    """L2, L3, L16: both end ids are met, at once too; the pad token is one of them."""
    folder = tiny_folders(seed=0, two_ends=True, pad=False, spread=0.05)
    async with running(folder) as engine:
        ends = set(engine.info.end_token_ids)
        got = await complete(engine, request(samples=40, parameters=sampling(max_new_tokens=30)))
    last = {c.token_ids[-1] for c in got if c.finish_reason is FinishReason.END_TOKEN}
    assert last == ends
    for c in got:
        assert ends.isdisjoint(c.token_ids[:-1])
        assert (c.finish_reason is FinishReason.END_TOKEN) == (c.token_ids[-1] in ends)
    at_once = [c for c in got if len(c.token_ids) == 1]
    assert {c.token_ids[0] for c in at_once} == ends
    assert {c.text for c in at_once} == {""}
    assert all(len(c.logprobs) == len(c.kept_sizes) == 1 for c in at_once)


async def test_pad_and_end_ids_inside_of_prompts_are_prompt(tiny_folders: Folders) -> None:
    """L4: told apart by position; the completion follows the whole prompt."""
    folder = tiny_folders(seed=1)
    tokenizer = load_tokenizer(folder)
    pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
    prompts = [(7, pad, pad, 8), (eos, 9, eos), (pad,), (6, 7, 8, 9, 10, eos, 11)]
    work = request(prompts, samples=2)
    async with running(folder) as engine:
        for prompt in prompts:
            assert engine.encode(TokenIds(prompt), "p") == prompt
        for c in await complete(engine, work):
            wanted = by_hand(engine.model, (eos,), work, c.prompt_index, c.sample_index)
            assert list(c.token_ids) == wanted["ids"]
            assert c.prompt_token_ids == prompts[c.prompt_index]


async def test_temperature_zero_is_the_argmax_with_certainty(tiny_folders: Folders) -> None:
    async with running(tiny_folders(seed=0)) as engine:
        got = await complete(engine, request(samples=2, parameters=sampling(0.0), full=True))
        for c in got:
            ids = list(c.prompt_token_ids)
            for token in c.token_ids:
                with torch.no_grad():
                    assert token == int(engine.model(torch.tensor([ids])).logits[0, -1].argmax())
                ids.append(token)
            assert set(c.logprobs) == {0.0}
            assert set(c.kept_sizes) == {1}
            assert c.full_logprobs == ()
            assert len(c.full_logprobs_temperature_1) == len(c.token_ids)


async def test_the_same_request_on_the_same_weights_is_answered_bitwise_alike(
    tiny_folders: Folders,
) -> None:
    work = request(parameters=sampling(0.9, 20, 0.95), full=True)
    async with running(tiny_folders(seed=0)) as engine:
        first = await complete(engine, work)
        await complete(engine, request([(9, 9)], samples=3))
        assert await complete(engine, work) == first
    async with running(tiny_folders(seed=0)) as engine:
        assert await complete(engine, work) == first


async def test_rows_over_the_batch_size_join_as_others_end(tiny_folders: Folders) -> None:
    """Each distinct prompt is prefilled once, wherever its samples join; what is sampled stays."""
    work = request(samples=6, parameters=sampling(max_new_tokens=30))
    folder = tiny_folders(seed=0, two_ends=True)
    async with running(folder) as whole:
        wanted = {
            (c.prompt_index, c.sample_index): c.token_ids for c in await complete(whole, work)
        }
    async with running(folder, max_batch_size=5) as engine:
        watched = Watched(engine)
        got = await complete(engine, work)
    assert {(c.prompt_index, c.sample_index): c.token_ids for c in got} == wanted
    prefills = [shape for shape in watched.shapes if shape[1] > 1 or shape == (1, 1)]
    steps = [rows for rows, length in watched.shapes if length == 1]
    computed = sum(rows * length for rows, length in watched.shapes if length > 1)
    assert computed == len(PROMPTS[0]) + len(PROMPTS[1])
    assert prefills[0] == (1, 8)
    assert max(steps) == 5
    # Places do not stay empty while rows wait: four batches one after another take more steps.
    lengths = [len(wanted[prompt, sample]) for prompt in (1, 0, 2, 3) for sample in range(6)]
    apart = sum(max(lengths[start : start + 5]) for start in range(0, 24, 5))
    assert len(steps) < 0.8 * apart


ARCHITECTURES = [
    GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=256),
    Gemma3TextConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"],
        max_position_embeddings=256,
    ),
    Qwen3MoeConfig(
        hidden_size=16,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
    ),
]


@pytest.mark.parametrize("config", ARCHITECTURES, ids=lambda config: config.model_type)
async def test_other_architectures_are_sampled_as_single_rows_without_cache_would_be(
    tiny_folders: Folders, config: Any
) -> None:
    """Learned positions, sliding windows whose rows cannot join, experts; rows wait for places."""
    tokenizer = load_tokenizer(tiny_folders(seed=0))
    config.vocab_size = len(tokenizer)
    config.bos_token_id = config.pad_token_id = None
    config.eos_token_id = tokenizer.eos_token_id
    config.initializer_range = 0.3
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config).float().eval()
    work = request(samples=3, parameters=sampling(0.9, 20, 0.95))
    engine = TransformersEngine(model, tokenizer, source="", max_batch_size=5)
    engine.start()
    try:
        got = await complete(engine, work)
    finally:
        await engine.stop()
    assert len(got) == 12
    for c in got:
        wanted = by_hand(model, (tokenizer.eos_token_id,), work, c.prompt_index, c.sample_index)
        assert list(c.token_ids) == wanted["ids"]
        assert c.logprobs == pytest.approx(wanted["logprobs"], abs=1e-4)


async def test_distinct_prompts_are_prefilled_once_and_ended_rows_stop_costing(
    tiny_folders: Folders,
) -> None:
    async with running(tiny_folders(seed=0, two_ends=True)) as engine:
        watched = Watched(engine)
        got = await complete(engine, request(samples=8))
    assert watched.shapes[0] == (3, 8)
    lengths = [len(c.token_ids) for c in got]
    assert len(set(lengths)) > 2
    alive = [sum(length > step for length in lengths) for step in range(1, max(lengths))]
    assert watched.shapes[1:] == [(rows, 1) for rows in alive]


async def test_completions_come_as_they_end(tiny_folders: Folders) -> None:
    async with running(tiny_folders(seed=0, two_ends=True)) as engine:
        got = await complete(engine, request(samples=8))
        lengths = [len(c.token_ids) for c in got]
        assert lengths == sorted(lengths)
        watched = Watched(engine, hold_at=lengths[0])
        async with aclosing(engine.generate(request(samples=8))) as stream:
            first = await asyncio.wait_for(anext(stream), 60)
            await watched.held()
            assert len(first.token_ids) == lengths[0]
            watched.release()


async def test_closing_the_stream_frees_its_rows(tiny_folders: Folders) -> None:
    async with running(tiny_folders(seed=0)) as engine:
        watched = Watched(engine, hold_at=0)
        long = request(samples=4, parameters=sampling(max_new_tokens=200))
        dropped = asyncio.create_task(complete(engine, long))
        await watched.held()
        waiting = asyncio.create_task(complete(engine, long))
        kept = asyncio.create_task(complete(engine, request([(5,)], samples=1)))
        await asyncio.sleep(0)
        for task in (dropped, waiting):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        watched.release()
        assert len(await asyncio.wait_for(kept, 60)) == 1
        steps = [shape for shape in watched.shapes if shape[0] > 1]
        assert len(steps) <= 2


async def test_starting_weights_are_rounded_to_the_wire_format_and_digested_as_pushed(
    tiny_folders: Folders,
) -> None:
    folder = tiny_folders(seed=0)
    tensors = wire_tensors(load_model(folder, dtype=torch.float32))
    for dtype in TensorDtype:
        engine = make(folder, weights_dtype=dtype)
        assert engine.loaded == LoadedWeights(digest=weights_digest(tensor_specs(tensors, dtype)))
        rounded = tensors["model.norm.weight"].to(getattr(torch, dtype)).float()
        assert torch.equal(wire_tensors(engine.model)["model.norm.weight"], rounded)
    assert make(folder, weights=False).loaded == LoadedWeights()


async def test_logits_that_are_not_finite_fail_the_request_and_not_the_engine(
    tiny_folders: Folders,
) -> None:
    async with running(tiny_folders(seed=0)) as engine:
        norm = wire_tensors(engine.model)["model.norm.weight"]
        saved = norm.clone()
        norm.fill_(math.nan)
        for temperature in (1.0, 0.0):
            with pytest.raises(FloatingPointError, match="not finite"):
                await complete(engine, request(parameters=sampling(temperature)))
        norm.copy_(saved)
        assert len(await complete(engine, request())) == 24


async def test_step_age_grows_only_while_a_step_hangs(tiny_folders: Folders) -> None:
    async with running(tiny_folders(seed=0)) as engine:
        assert engine.seconds_since_step == 0
        watched = Watched(engine, hold_at=0)
        task = asyncio.create_task(complete(engine, request()))
        await watched.held()
        first = engine.seconds_since_step
        assert engine.seconds_since_step > first
        watched.release()
        await task
        await complete(engine, request(samples=1))
    assert engine.seconds_since_step == 0


async def test_stopping_fails_what_runs_and_what_waits(tiny_folders: Folders) -> None:
    async with running(tiny_folders(seed=0)) as engine:
        watched = Watched(engine, hold_at=0)
        running_task = asyncio.create_task(complete(engine, request()))
        await watched.held()
        waiting = asyncio.create_task(complete(engine, request()))
        swap = asyncio.create_task(engine.apply(pushed(tiny_folders(seed=5)), V7))
        await queued(2)
        stopping = asyncio.create_task(engine.stop())
        for task in (waiting, swap):
            with pytest.raises(RuntimeError, match="the engine has stopped"):
                await asyncio.wait_for(task, 60)
        watched.release()
        with pytest.raises(RuntimeError, match="the engine has stopped"):
            await asyncio.wait_for(running_task, 60)
        await stopping
        with pytest.raises(RuntimeError, match="the engine has stopped"):
            await complete(engine, request())
        assert engine.loaded.version == 0
