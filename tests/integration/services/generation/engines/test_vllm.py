"""What only vLLM does: it sleeps, and a service whose vLLM is gone ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.integration.services.generation.engines.served import on_vllm, vllm_service
from tests.support.processes import wait_until
from tests.support.tgi.server import Control

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
