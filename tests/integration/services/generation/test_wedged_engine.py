"""S10: a service whose engine hangs says so, through its whole server."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.integration.services.generation.harness import IDS, ONCE, TIMEOUT, Hold, request

from antiphon.clients.generation import GenerationClient
from antiphon.services.common.server import ServerSettings
from antiphon.services.generation import serving
from antiphon.services.generation.engine import Engine
from antiphon.services.generation.serving import GenerationOptions, load_engine, serve_generation

NAMES = ("", "antiphon.v1.GenerationService")
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def served(
    folder: Path, address_file: Path, monkeypatch: pytest.MonkeyPatch, step_limit: float
) -> AsyncIterator[tuple[str, Any]]:
    """The service as `antiphon serve generation` runs it: its address and its engine."""
    engines: list[Engine] = []

    def load(options: GenerationOptions) -> Engine:
        engines.append(load_engine(options))
        return engines[0]

    monkeypatch.setattr(serving, "load_engine", load)
    options = GenerationOptions(model=str(folder), device="cpu", step_limit_seconds=step_limit)
    settings = ServerSettings(address_file=address_file, metrics_port=None)
    service = asyncio.create_task(serve_generation(options, settings))
    address = None
    while address is None:
        assert not service.done(), service.exception()
        await asyncio.sleep(0.02)
        address = written_address(address_file)
    yield address, engines[0]
    signal.raise_signal(signal.SIGTERM)
    assert await asyncio.wait_for(service, TIMEOUT) == 0


def written_address(file: Path) -> str | None:
    return json.loads(file.read_text())["address"] if file.exists() else None


async def test_health_is_not_serving_while_the_engine_hangs_in_a_step_and_serving_after_it(
    tiny_folders: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S10: readiness and liveness both; calls that need no step are answered meanwhile."""
    folder, file = tiny_folders(seed=0), tmp_path / "address.json"
    async with (
        served(folder, file, monkeypatch, step_limit=0.2) as (address, engine),
        grpc.aio.insecure_channel(address) as channel,
        GenerationClient(address, retry=ONCE) as client,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [
            stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=TIMEOUT)
            for name in NAMES
        ]

        async def said() -> set[int]:
            return {(await watch.read()).status for watch in watches}

        assert await said() == {SERVING}
        hold = Hold(engine)
        stream = client.generate(request(IDS, max_new_tokens=2), timeout=TIMEOUT)
        first = asyncio.create_task(anext(stream))
        await hold.entered()
        assert await said() == {NOT_SERVING}
        assert (await client.get_model_info(TIMEOUT)).engine == "transformers"
        hold.release()
        assert await said() == {SERVING}
        assert len((await first).token_ids) <= 2
        await stream.aclose()
        for watch in watches:
            watch.cancel()


async def test_a_queue_that_moves_on_is_no_reason_to_be_replaced(
    tiny_folders: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S10: the whole work takes many times as long as a step may, and every step far less."""
    folder, file = tiny_folders(seed=0), tmp_path / "address.json"
    async with (
        served(folder, file, monkeypatch, step_limit=0.5) as (address, engine),
        grpc.aio.insecure_channel(address) as channel,
        GenerationClient(address, retry=ONCE) as client,
    ):
        pauses = Pauses(engine, seconds=0.1)
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(), timeout=TIMEOUT
        )
        assert (await watch.read()).status == SERVING
        change = asyncio.ensure_future(watch.read())
        asked = request(IDS, samples=4, max_new_tokens=6)
        streams = [client.generate(asked, timeout=TIMEOUT) for _ in range(3)]

        async def read(stream: Any) -> int:
            return len([completion async for completion in stream])

        assert await asyncio.gather(*map(read, streams)) == [4, 4, 4]
        assert pauses.forwards * 0.1 > 0.5
        assert not change.done()
        watch.cancel()
        await asyncio.gather(change, return_exceptions=True)


class Pauses:
    """Every forward of an engine takes so long."""

    def __init__(self, engine: Any, *, seconds: float) -> None:
        self.forwards = 0

        def pause(*_: Any) -> None:
            self.forwards += 1
            time.sleep(seconds)

        engine.model.register_forward_pre_hook(pause)
