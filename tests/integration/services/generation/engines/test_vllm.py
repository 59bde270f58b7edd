"""What only vLLM does: it sleeps, and a service whose vLLM is gone ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import grpc
import psutil
import pytest
from tests.integration.services.generation.engines.served import (
    Served,
    greedy,
    on_vllm,
    vllm_service,
)
from tests.integration.services.generation.harness import refusal
from tests.support.processes import wait_until
from tests.support.tgi.server import Control

from antiphon.clients.errors import CallError
from antiphon.clients.generation import GenerationClient

pytestmark = pytest.mark.vllm


async def test_it_sleeps_without_work_and_wakes_for_some_and_its_end_is_the_services(
    tiny_folders: Callable[..., Path], tmp_path: Path
) -> None:
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


async def test_it_waits_without_weights_for_the_first_push(
    tiny_folders: Callable[..., Path], tmp_path: Path
) -> None:
    """S3: nothing is sampled before, and then from what was pushed."""
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
