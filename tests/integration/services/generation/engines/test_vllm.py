"""What only vLLM does: it sleeps, and a service whose vLLM is gone ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import grpc
import psutil
import pytest
from tests.integration.services.generation.engines.served import (
    SERVICES,
    Served,
    gap,
    greedy,
    named,
    on_vllm,
    vllm_service,
)
from tests.integration.services.generation.harness import refusal
from tests.support.processes import wait_until
from tests.support.tgi.server import Control

from antiphon.clients.errors import CallError
from antiphon.clients.generation import GenerationClient

pytestmark = pytest.mark.vllm


async def test_it_sleeps_and_wakes_and_its_end_is_the_services_which_then_starts_from_nothing(
    tiny_folders: Callable[..., Path], tmp_path: Path
) -> None:
    """S3: a restarted service samples nothing until it has the run's weights again."""
    folder = tiny_folders(seed=1, kind="bytes", add_bos=True, two_ends=True, head_size=32)
    vocabulary_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    service = vllm_service(vocabulary_size, folder)
    async with on_vllm(folder, Control(tmp_path)) as served:
        before = await served.generate("the")
        slept = service.log.count("vLLM sleeps")
        wait_until(lambda: service.log.count("vLLM sleeps") > slept, timeout=60, what="vLLM sleeps")
        after = await served.generate("the")
    assert [c.token_ids for c in before] == [c.token_ids for c in after]
    for child in psutil.Process(service.popen.pid).children(recursive=True):
        if child.name().startswith("VLLM"):
            child.kill()
    service.wait(timeout=120)
    assert "vLLM has ended, so this service does" in service.log
    SERVICES.clear()
    restarted = vllm_service(vocabulary_size, folder)
    async with GenerationClient(restarted.address(timeout=600)) as client:
        again = Served(client, folder, served.run, served.version, served.tolerance)
        with pytest.raises(CallError) as caught:
            await again.generate("the")
        again.version -= 1
        await again.push(folder)
        back = await again.generate("the")
    assert refusal(caught) == (grpc.StatusCode.FAILED_PRECONDITION, "WEIGHTS_MISSING")
    assert [c.token_ids for c in back] == [c.token_ids for c in before]


async def test_what_vllm_would_sample_otherwise_or_not_tell_is_refused(
    tiny_folders: Callable[..., Path], tmp_path: Path
) -> None:
    """L7: it raises small temperatures, and tells 256 of the likeliest tokens at most."""
    folder = tiny_folders(seed=1, kind="bytes", add_bos=True, two_ends=True, head_size=32)
    async with on_vllm(folder, Control(tmp_path)) as served:
        for sampling, wanted in (
            (named(temperature=0.009), "at least 0.01"),
            (named(top_p=0.9), "at most 256 beside top_p 0.9"),
            (named(top_p=0.9, top_k=257), "at most 256 beside top_p 0.9"),
        ):
            with pytest.raises(CallError, match=wanted) as caught:
                await served.generate("the", sampling=sampling)
            assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
        for sampling in (named(temperature=0.01), named(top_p=0.9, top_k=256)):
            assert len(await served.generate("the", sampling=sampling)) == 1


async def test_it_waits_without_weights_for_the_first_push_and_ends_with_all_that_it_started(
    tiny_folders: Callable[..., Path],
) -> None:
    """S3, S13: nothing is sampled before the push, then from what was pushed; told to end, it does,
    and nothing of that is an error."""
    folder = tiny_folders(seed=2, kind="bytes", add_bos=True, two_ends=True, head_size=32)
    service = vllm_service(0, folder, "--no-weights")
    async with GenerationClient(service.address(timeout=600)) as client:
        served = Served(client, folder, "run", 0, 1e-3)
        with pytest.raises(CallError) as caught:
            await served.generate("the")
        await served.push(folder)
        (completion,) = await served.generate("the")
        ends = (await served.info()).end_token_ids
    assert refusal(caught) == (grpc.StatusCode.FAILED_PRECONDITION, "WEIGHTS_MISSING")
    prompt = completion.prompt_token_ids
    assert completion.token_ids == greedy(folder, prompt, ends, 12)
    started = psutil.Process(service.popen.pid).children(recursive=True)
    assert service.terminate(timeout=60) == 0
    SERVICES.pop((0, "--no-weights"))
    wait_until(lambda: not any(map(alive, started)), timeout=30, what="vLLM is gone")
    assert "EngineDeadError" not in service.log


async def test_a_push_reaches_every_part_of_a_model_that_is_split(
    tiny_folders: Callable[..., Path],
) -> None:
    """Full and delta, with a head that shares the embedding's weights, over two workers."""
    old, new = (
        tiny_folders(seed=seed, kind="bytes", add_bos=True, two_ends=True, head_size=32)
        for seed in (1, 2)
    )
    service = vllm_service(0, old, "--engine-set", "tensor_parallel_size=2")
    async with GenerationClient(service.address(timeout=600)) as client:
        started = psutil.Process(service.popen.pid).children(recursive=True)
        served = Served(client, old, "run", 0, 1e-3)
        await served.push(new)
        pushed = await served.generate("the", sampling=named(), samples=2)
        await served.push_delta(old)
        changed = await served.generate("the", sampling=named(), samples=2)
    for folder, completions in ((new, pushed), (old, changed)):
        assert all(gap(folder, one) < served.tolerance for one in completions)
    assert sum("Worker" in process.name() for process in started) == 2


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
