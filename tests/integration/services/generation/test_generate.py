"""Generate, GetModelInfo, health and metrics of a real server."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.integration.services.generation.harness import (
    IDS,
    TIMEOUT,
    Hold,
    push_of,
    refusal,
    replica,
    request,
)
from tests.support.processes import Processes

from antiphon.clients.errors import CallError
from antiphon.clients.generation import GenerationClient
from antiphon.clients.types import (
    ChatMessage,
    Completion,
    FinishReason,
    LoadedWeights,
    PushKind,
    TokenIds,
    WeightsSpan,
)
from antiphon.services.common.models import load_model, load_tokenizer, tokenizer_fingerprint
from antiphon.services.generation.engine import EngineRequest

Folders = Callable[..., Path]
INVALID, FAILED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION


async def test_text_chat_and_token_ids_are_completed_and_say_which_ids_were_used(
    tiny_folders: Folders,
) -> None:
    """L14: a text with its own begin token gets no second one, a chat only the template's."""
    folder = tiny_folders(seed=0, add_bos=True)
    tokenizer = load_tokenizer(folder)
    bos = tokenizer.bos_token_id
    red, cat, answer, user = (
        tokenizer.convert_tokens_to_ids(word) for word in ("red", "cat", "answer", "dog")
    )
    async with replica(folder) as r:
        got = await r.generate(
            "red cat",
            f"{tokenizer.bos_token} red cat",
            (ChatMessage("dog", "red"),),
            TokenIds((cat, tokenizer.eos_token_id, tokenizer.pad_token_id, red)),
        )
    prompts = {c.prompt_index: c.prompt_token_ids for c in got}
    assert prompts == {
        0: (bos, red, cat),
        1: (bos, red, cat),
        2: (user, red, answer),
        3: (cat, tokenizer.eos_token_id, tokenizer.pad_token_id, red),
    }
    texts = {c.prompt_index: (c.text, c.token_ids) for c in got}
    assert texts[0] == texts[1]
    for c in got:
        assert (c.instance_id, c.boot_id) == (r.server.instance_id, r.server.boot_id)
        assert c.weights_spans == (WeightsSpan(0, 0),)
        assert c.text == tokenizer.decode(c.token_ids, skip_special_tokens=True)


async def test_a_tokenizer_without_pad_token_serves_prompts_of_several_lengths(
    tiny_folders: Folders,
) -> None:
    """L15: padding needs no pad token."""
    folder = tiny_folders(seed=0, kind="bytes", pad=False)
    prompts = ("the", "a dragon sings again and again", "the 🐉")
    async with replica(folder) as r:
        together = await r.generate(*prompts)
        alone = [(await r.generate(prompt))[0] for prompt in prompts]
    assert {c.prompt_index: c.token_ids for c in together} == {
        i: c.token_ids for i, c in enumerate(alone)
    }


async def test_completions_are_streamed_as_they_end_and_each_sample_comes_once(
    tiny_folders: Folders,
) -> None:
    """L16: an empty completion is there, with its end token."""
    folder = tiny_folders(seed=0, two_ends=True)
    async with replica(folder) as r:
        got = await r.generate(
            IDS, TokenIds((8, 9)), samples=20, temperature=1.0, max_new_tokens=20
        )
    assert len({(c.prompt_index, c.sample_index) for c in got}) == 40
    lengths = [len(c.token_ids) for c in got]
    assert lengths == sorted(lengths)
    empty = [c for c in got if len(c.token_ids) == 1]
    assert empty
    assert {(c.text, c.finish_reason) for c in empty} == {("", FinishReason.END_TOKEN)}


async def test_what_cannot_be_completed_is_refused_before_anything_is_sampled(
    tiny_folders: Folders,
) -> None:
    """L12 (engine side): over the context, outside of the vocabulary, no template."""
    folder = tiny_folders(seed=0, context=32)
    async with replica(folder) as r:
        for prompt, new, field in [
            (TokenIds((5,) * 25), 8, "prompts[1]"),
            (TokenIds((5,) * 100), 1, "prompts[1]"),
            (TokenIds((5, 29)), 8, "prompts[1].prompt.token_ids.ids[1]"),
        ]:
            with pytest.raises(CallError) as caught:
                await r.generate(IDS, prompt, max_new_tokens=new)
            assert caught.value.code is INVALID
            assert [v.field for v in caught.value.violations] == [field]
        got = await r.generate(TokenIds((5,) * 24), max_new_tokens=8)
        assert len(got[0].prompt_token_ids) + 8 == 32


async def test_a_service_without_weights_refuses_until_the_first_push(
    tiny_folders: Folders,
) -> None:
    """Architecture and tokenizer only: FAILED_PRECONDITION WEIGHTS_MISSING, then served."""
    folder = tiny_folders(seed=0)
    async with replica(folder, weights=False) as r:
        info = await r.client.get_model_info(TIMEOUT)
        assert info.loaded == LoadedWeights()
        with pytest.raises(CallError) as caught:
            await r.generate(IDS)
        assert refusal(caught) == (FAILED, "WEIGHTS_MISSING")
        assert caught.value.metadata["boot_id"] == r.server.boot_id
        await r.push(push_of(folder, 1))
        got = await r.generate(IDS, version=1)
        assert got[0].weights_spans == (WeightsSpan(0, 1),)
        model, ids = load_model(folder, dtype=torch.float32), list(IDS.ids)
        for token in got[0].token_ids:
            with torch.no_grad():
                assert token == int(model(torch.tensor([ids])).logits[0, -1].argmax())
            ids.append(token)


async def test_a_restarted_replica_is_noticed_instead_of_sampled_from(
    tiny_folders: Folders,
) -> None:
    """S3: the starting weights are not what the run has pushed."""
    folder = tiny_folders(seed=0)
    async with replica(folder) as r:
        await r.push(push_of(tiny_folders(seed=5), 1))
        first = await r.generate(IDS, version=1, temperature=1.0, samples=4)
        boot_id = r.server.boot_id
    async with replica(folder) as r:
        with pytest.raises(CallError) as caught:
            await r.generate(IDS, version=1)
        assert refusal(caught) == (FAILED, "WEIGHTS_MISSING")
        metadata = caught.value.metadata
        assert (metadata["loaded_version"], metadata["wanted_version"]) == ("0", "1")
        assert metadata["boot_id"] == r.server.boot_id != boot_id
        await r.push(push_of(tiny_folders(seed=5), 1))
        again = await r.generate(IDS, version=1, temperature=1.0, samples=4)
    assert [(c.token_ids, c.logprobs) for c in again] == [(c.token_ids, c.logprobs) for c in first]


async def test_model_info_says_what_runs(tiny_folders: Folders) -> None:
    folder = tiny_folders(seed=0, two_ends=True, context=64)
    push = push_of(tiny_folders(seed=5), 3, incarnation=2)
    async with replica(folder) as r:
        before = await r.client.get_model_info(TIMEOUT)
        await r.push(push)
        info = await r.client.get_model_info(TIMEOUT)
    assert (before.loaded.version, before.bound_run_id, before.bound_incarnation) == (0, "", 0)
    assert len(before.loaded.digest) == 32
    assert info.loaded == LoadedWeights("run", 2, 3, push.header.digest)
    assert (info.bound_run_id, info.bound_incarnation) == ("run", 2)
    assert (info.model, info.engine) == (str(folder), "transformers")
    assert (info.vocabulary_size, info.context_length) == (29, 64)
    assert info.end_token_ids == (2, 3)
    assert info.tokenizer_fingerprint == tokenizer_fingerprint(load_tokenizer(folder))
    assert (info.instance_id, info.boot_id) == (r.server.instance_id, r.server.boot_id)
    assert info.capabilities.push_kinds == frozenset(PushKind)
    assert info.capabilities.token_ids
    assert info.capabilities.logprobs
    assert info.capabilities.seeds


async def test_a_call_that_its_caller_gives_up_frees_its_rows(
    tiny_folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_folders(seed=1)
    async with replica(folder) as r:
        left, generate = asyncio.Event(), r.engine.generate

        async def watched(work: EngineRequest) -> AsyncGenerator[Completion]:
            try:
                async with aclosing(generate(work)) as completions:
                    async for completion in completions:
                        yield completion
            finally:
                left.set()

        monkeypatch.setattr(r.engine, "generate", watched)
        hold = Hold(r.engine)
        long = request(IDS, samples=4, max_new_tokens=200)
        stream = r.client.generate(long, timeout=TIMEOUT)
        task = asyncio.create_task(anext(stream))
        await hold.entered()
        task.cancel()
        await asyncio.wait({task})
        await stream.aclose()
        await asyncio.wait_for(left.wait(), TIMEOUT)
        waits = asyncio.create_task(r.generate(IDS, max_new_tokens=1))
        hold.release()
        assert len(await waits) == 1
        assert hold.forwards < 10


async def test_another_agents_request_is_refused(tiny_folders: Folders) -> None:
    async with replica(tiny_folders(seed=0), agent=1) as r:
        with pytest.raises(CallError) as caught:
            await r.generate(IDS, agent=0)
        assert caught.value.code is INVALID
        assert [v.field for v in caught.value.violations] == ["agent"]
        assert await r.generate(IDS, agent=1)


async def test_health_and_other_calls_answer_while_an_engine_step_is_held(
    tiny_folders: Folders,
) -> None:
    """S15: the event loop is never the engine's; and the age of the hung step is to be seen."""
    async with replica(tiny_folders(seed=0)) as r:
        hold = Hold(r.engine)
        async with aclosing(r.client.generate(request(IDS), timeout=TIMEOUT)) as stream:
            task = asyncio.create_task(anext(stream))
            await hold.entered()
            async with grpc.aio.insecure_channel(r.server.address) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                for _ in range(20):
                    for name in ("", "antiphon.v1.GenerationService"):
                        answer = await health.Check(
                            health_pb2.HealthCheckRequest(service=name), timeout=5
                        )
                        assert answer.status == health_pb2.HealthCheckResponse.SERVING
            await r.client.get_model_info(5)
            assert not task.done()
            assert r.engine.seconds_since_step > 0
            hold.release()
            await asyncio.wait_for(task, TIMEOUT)


async def test_metrics_count_what_happened(tiny_folders: Folders) -> None:
    folder = tiny_folders(seed=1)
    push = push_of(tiny_folders(seed=5), 4)

    def read(address: str) -> dict[str, float]:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    async with replica(folder) as r:
        before = await asyncio.to_thread(read, r.server.metrics_address)
        got = await r.generate(IDS, TokenIds((8, 9)), samples=3, temperature=1.0)
        await r.push(push)
        after = await asyncio.to_thread(read, r.server.metrics_address)

    def grown(name: str) -> float:
        key = f"antiphon_generation_{name}"
        return after[key] - before.get(key, 0.0)

    assert grown("generation_tokens_total") == sum(len(c.token_ids) for c in got)
    assert grown("prompt_tokens_total") == 5
    assert grown("batch_size_sum") == 6
    assert grown("request_queue_time_seconds_count") == 1
    assert grown("e2e_request_latency_seconds_count") == 1
    assert grown("request_prefill_time_seconds_count") == 1
    assert grown("request_decode_time_seconds_count") == 1
    assert grown("time_to_first_token_seconds_count") == 1
    longest = max(len(c.token_ids) for c in got)
    assert grown("inter_token_latency_seconds_count") == longest - 1
    assert grown("prefix_cache_queries_total") == 15
    assert grown("prefix_cache_hits_total") == 10
    assert after["antiphon_generation_kv_cache_tokens"] == 0
    finished = [grown(f'completions_total{{finish_reason="{r}"}}') for r in ("length",)]
    assert finished == [sum(c.finish_reason is FinishReason.LENGTH for c in got)]
    assert after["antiphon_generation_weights_version"] == 4
    assert grown('push_bytes_total{kind="full"}') == push.nbytes
    assert grown('push_pause_seconds_count{kind="full"}') == 1
    assert grown('push_seconds_count{kind="full"}') == 1
    assert after["antiphon_generation_num_requests_running"] == 0
    assert after["antiphon_generation_num_requests_waiting"] == 0
    key = "grpc_server_handled_total"
    assert any(name.startswith(key) and "PushWeights" in name for name in after)


async def test_the_command_serves_and_ends_on_sigterm(
    tiny_folders: Folders, processes: Processes
) -> None:
    folder = tiny_folders(seed=0)
    started = processes.serve(
        "agent", "generation", "--model", str(folder), "--no-weights", "--threads", "1"
    )
    client = GenerationClient(await asyncio.to_thread(started.address))
    try:
        info = await client.get_model_info(TIMEOUT)
        assert info.loaded == LoadedWeights()
        push = push_of(folder, 1)
        await client.push_weights(push.header, push.read, timeout=TIMEOUT)
        got = [c async for c in client.generate(request(IDS, version=1), timeout=TIMEOUT)]
        assert len(got) == 1
    finally:
        await client.close()
    assert await asyncio.to_thread(started.terminate) == 0


async def test_a_model_that_is_not_there_is_one_clear_line(
    tmp_path: Path, processes: Processes
) -> None:
    started = processes.serve("agent", "generation", "--model", str(tmp_path / "nothing"))
    assert await asyncio.to_thread(lambda: started.wait(timeout=60)) == 2
    assert "cannot load --model" in started.log
    assert "Traceback" not in started.log
