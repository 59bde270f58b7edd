"""What every engine does alike, seen from a caller of the generation service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import torch
from tests.integration.services.generation.engines.served import (
    Served,
    forward,
    gap,
    greedy,
    named,
    on_running_tgi,
    on_tgi,
    on_transformers,
    on_vllm,
)
from tests.integration.services.generation.harness import TIMEOUT, refusal
from tests.integration.services.generation.test_push_adapter import Adapted
from tests.support.tgi.server import Control

from antiphon.clients.errors import CallError
from antiphon.clients.types import ChatMessage, FinishReason, SamplingParameters, WeightsSpan
from antiphon.services.common.models import encode_chat, encode_prompt, load_tokenizer
from antiphon.services.common.sampling import token_logprobs

Folders = Callable[..., Path]
Open = Callable[..., AbstractAsyncContextManager[Served]]

MODEL = {"kind": "bytes", "add_bos": True, "two_ends": True, "head_size": 32}
ENDING = {"two_ends": True, "head_size": 32, "spread": 0.02}
LONG = "the dragon sings again and again; " * 5
TEXTS = ("the", "In an old city \N{DRAGON} sang: ναί", LONG)


@dataclass(frozen=True)
class Engine:
    """How a service on an engine is opened: one that may be pushed to, and one that need not be."""

    takes_pushes: Open
    samples: Open


ENGINES = {
    "transformers": Engine(on_transformers, on_transformers),
    "tgi": Engine(on_tgi, on_running_tgi),
    "vllm": Engine(on_vllm, on_vllm),
}
MARKS = {"vllm": pytest.mark.vllm}


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in ENGINES])
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]


@pytest.fixture
def control(tmp_path: Path) -> Control:
    return Control(tmp_path / "control")


@pytest.fixture
async def served(engine: Engine, control: Control, tiny_folders: Folders) -> AsyncGenerator[Served]:
    async with engine.samples(tiny_folders(seed=1, **MODEL), control) as opened:
        yield opened
    assert control.notes("broken") == []


async def test_greedy_completions_are_those_of_the_model(served: Served) -> None:
    """Text of any length and script; the prompt's ids are those that the learner would make."""
    tokenizer = load_tokenizer(served.folder)
    ends = (await served.info()).end_token_ids
    got = await served.generate(*TEXTS)
    assert len(got) == len(TEXTS)
    for text, completion in zip(TEXTS, got, strict=True):
        prompt = tuple(encode_prompt(tokenizer, text))
        assert completion.prompt_token_ids == prompt
        assert completion.token_ids == greedy(served.folder, prompt, ends, 12)
        assert set(completion.logprobs) == {0.0}
        assert set(completion.kept_sizes) == {1}
        assert completion.weights_spans == (WeightsSpan(0, served.version),)


async def test_a_chat_and_a_text_with_its_begin_token_get_one_begin_token_at_most(
    served: Served,
) -> None:
    """L14: the template's ids, and no begin token twice."""
    tokenizer = load_tokenizer(served.folder)
    text = f"{tokenizer.bos_token}the dragon"
    chat = (ChatMessage(str(tokenizer.bos_token), "sings"),)
    got = await served.generate(text, chat)
    assert got[0].prompt_token_ids == tuple(encode_prompt(tokenizer, text))
    assert got[0].prompt_token_ids.count(tokenizer.bos_token_id) == 1
    assert got[1].prompt_token_ids == tuple(encode_chat(tokenizer, chat))


@pytest.mark.parametrize(
    "sampling",
    [
        named(temperature=0.7),
        named(temperature=1.3, top_k=7),
        named(temperature=0.6, top_k=50, top_p=0.6),
    ],
    ids=["temperature", "top_k", "top_p"],
)
async def test_log_probabilities_are_of_the_distribution_sampled_from(
    served: Served, sampling: SamplingParameters
) -> None:
    """L7: what the learner computes for the same ids, kept sets included."""
    for completion in await served.generate(*TEXTS[:2], sampling=sampling, samples=3):
        learner = token_logprobs(
            forward(served.folder, completion),
            torch.tensor(completion.token_ids),
            torch.tensor(completion.kept_sizes),
            sampling.temperature,
        )
        assert not learner.forced.any()
        gap = (learner.logprobs - torch.tensor(completion.logprobs)).abs().max()
        assert gap < served.tolerance


async def test_a_seed_says_which_completion_it_is(served: Served) -> None:
    sampling = named(max_new_tokens=10)
    first = await served.generate("the", sampling=sampling, samples=4)
    again = await served.generate("the", sampling=sampling, samples=4)
    assert [c.token_ids for c in first] == [c.token_ids for c in again]
    assert len({c.token_ids for c in first}) == 4
    largest = await served.generate("the", sampling=sampling, seeds=lambda *_: 2**64 - 12345)
    assert largest[0].token_ids not in {c.token_ids for c in first}


async def test_each_end_token_ends_a_completion_and_an_empty_one_is_empty(
    engine: Engine, control: Control, tiny_folders: Folders
) -> None:
    """L3, L16: both end tokens, as the last token and nowhere before; alone, the text is ""."""
    async with engine.samples(tiny_folders(seed=0, **ENDING), control) as served:
        ends = (await served.info()).end_token_ids
        got = await served.generate("red", sampling=named(max_new_tokens=20), samples=30)
        empty = await served.generate("red", sampling=named(max_new_tokens=1), samples=60)
    assert len(ends) == 2
    for completion in (*got, *empty):
        *before, last = completion.token_ids
        assert not set(before) & set(ends)
        ended = completion.finish_reason is FinishReason.END_TOKEN
        assert ended == (last in ends)
    assert {c.token_ids[-1] for c in got if c.finish_reason is FinishReason.END_TOKEN} == set(ends)
    assert {c.finish_reason for c in got} == set(FinishReason)
    assert {c.text for c in empty if c.finish_reason is FinishReason.END_TOKEN} == {""}


async def test_text_holds_whole_characters_only(served: Served) -> None:
    """U8: bytes of a character that was cut are left out; the ids hold all."""
    tokenizer = load_tokenizer(served.folder)
    got = await served.generate("the", sampling=named(temperature=1.5), samples=8)
    for completion in got:
        assert "\N{REPLACEMENT CHARACTER}" not in completion.text
        whole = tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        assert completion.text == whole.replace("\N{REPLACEMENT CHARACTER}", "")


async def test_what_does_not_fit_the_context_is_refused(served: Served) -> None:
    """L12: with the numbers."""
    length = (await served.info()).context_length
    with pytest.raises(CallError) as caught:
        await served.generate("a" * length, "the", sampling=named(max_new_tokens=1))
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert f"{length + 1} tokens" in caught.value.message
    assert await served.generate("a" * (length - 10), sampling=named(max_new_tokens=8))


async def test_a_caller_that_leaves_frees_the_engine(served: Served) -> None:
    """Much more work than can be waited for, then a request that needs the whole engine."""
    endless = named(max_new_tokens=120, temperature=0.1)
    stream = served.stream("the", sampling=endless, samples=200)
    async with aclosing(stream) as completions:
        await anext(completions)
    assert len(await served.generate("the", sampling=named(max_new_tokens=2))) == 1


async def test_pushes_bring_new_weights_and_the_old_ones_cache_is_forgotten(
    engine: Engine, control: Control, tiny_folders: Folders
) -> None:
    """S4: the same prompt before, after a full push, and after a delta back to where it was, of a
    model whose head is its embedding."""
    old, new = (tiny_folders(seed=seed, **MODEL) for seed in (1, 2))
    async with engine.takes_pushes(old, control) as served:
        ends = (await served.info()).end_token_ids
        before = await served.generate(*TEXTS)
        result = await served.push(new)
        info = await served.info()
        after = await served.generate(*TEXTS)
        sampled = await served.generate("the", sampling=named(temperature=0.8), samples=2)
        await served.push_delta(old)
        again = await served.generate(*TEXTS)
    assert result.weights_version == info.loaded.version == served.version - 1
    assert info.loaded.digest == result.digest
    for folder, completions in ((old, before), (new, after), (old, again)):
        for completion in completions:
            prompt = completion.prompt_token_ids
            assert completion.token_ids == greedy(folder, prompt, ends, 12)
    versions = {c.weights_spans[0].weights_version for c in after}
    assert versions == {result.weights_version}
    for completion in sampled:
        logprobs = (forward(new, completion) / 0.8).log_softmax(-1)
        own = logprobs.gather(-1, torch.tensor(completion.token_ids)[:, None]).squeeze(-1)
        assert (own - torch.tensor(completion.logprobs)).abs().max() < served.tolerance
    assert control.notes("broken") == []


async def test_an_adapter_samples_until_the_next_full_push(
    engine: Engine, control: Control, tiny_folders: Folders
) -> None:
    """It is pushed alone, onto a base that is loaded, and adds to that."""
    folder = tiny_folders(seed=1, **MODEL)
    adapted = Adapted(folder, seed=3)
    async with engine.takes_pushes(folder, control) as served:
        push = adapted.push(served.version + 1, run_id=served.run)
        await served.client.push_weights(push.header, push.read, timeout=TIMEOUT)
        served.version += 1
        with_adapter = await served.generate("the", sampling=named(), samples=2)
        await served.push(folder)
        without = await served.generate("the", sampling=named(), samples=2)
    for model, completions in ((adapted.model, with_adapter), (folder, without)):
        for completion in completions:
            assert gap(model, completion) < served.tolerance
    assert gap(folder, with_adapter[0]) > 100 * served.tolerance
    assert control.notes("broken") == []


@pytest.mark.parametrize("name", ["transformers", "tgi"])
async def test_a_service_that_restarts_samples_nothing_until_it_is_pushed_to_again(
    name: str, control: Control, tiny_folders: Folders
) -> None:
    """S3: vLLM's restart, which takes long, is tried where it is killed anyway (test_vllm)."""
    start, pushed = (tiny_folders(seed=seed, **MODEL) for seed in (1, 2))
    for first in (True, False):
        async with ENGINES[name].takes_pushes(start, control) as served:
            if not first:
                served.version = 1
                with pytest.raises(CallError) as caught:
                    await served.generate("the")
                assert refusal(caught) == (grpc.StatusCode.FAILED_PRECONDITION, "WEIGHTS_MISSING")
                served.version = 0
            await served.push(pushed)
            (completion,) = await served.generate("the")
            ends = (await served.info()).end_token_ids
        prompt = completion.prompt_token_ids
        assert completion.token_ids == greedy(pushed, prompt, ends, 12)
        assert completion.weights_spans == (WeightsSpan(0, 1),)
