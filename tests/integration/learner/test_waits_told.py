"""A run that waits for services to start says so: nobody has to guess why nothing happens."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import pytest
from tests.integration.clients.judges import Judge
from tests.integration.clients.servers import serving

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.errors import CallError
from antiphon.clients.generation import GenerationClient
from antiphon.clients.names import UnresolvedError
from antiphon.clients.retry import RetryPolicy
from antiphon.clients.reward import RewardClient
from antiphon.learner import start_wait
from antiphon.learner.start_wait import started
from antiphon.learner.weights.connect import model_infos
from antiphon.learner.weights.membership import resolve_all
from antiphon.learner.weights.replicas import Replica


@pytest.fixture(autouse=True)
def _told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_wait, "QUIET_SECONDS", 0.0)


async def test_a_service_that_does_not_answer_yet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"unix:{tmp_path}/nobody.sock"
    async with GenerationClient(address, retry=RetryPolicy(attempts=1)) as client:
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(CallError, match="UNAVAILABLE") as raised,
        ):
            await model_infos([Replica(address, client)], start_timeout=0.7, timeout=5)
    (told,) = [record.getMessage() for record in caplog.records if "waiting" in record.msg]
    assert told.startswith("waiting for a service, 0.7 s at most (start_timeout): ")
    assert address in told
    assert "nothing listens there: start the service" in told
    assert "nothing listens there" in str(raised.value)
    assert re.search(r"waited \d+ s for it \(start_timeout\)", str(raised.value))


async def test_a_service_that_starts_later_is_waited_for(tmp_path: Path) -> None:
    address, refused = f"unix:{tmp_path}/s", asyncio.Event()
    async with RewardClient(address, retry=RetryPolicy(attempts=1)) as client:

        async def ask() -> str:
            try:
                await client.health(5)
            except CallError:
                refused.set()
                raise
            return "it answers"

        asking = asyncio.create_task(started(client, ask, start_timeout=60, timeout=5))
        await refused.wait()
        async with serving(Judge().register, address):
            assert await asking == "it answers"


async def test_a_name_that_nobody_is_behind_yet(caplog: pytest.LogCaptureFixture) -> None:
    name = Endpoint.of("dns:///nobody.invalid:50051")
    with caplog.at_level(logging.WARNING), pytest.raises(UnresolvedError):
        await resolve_all([name], timeout=5, start_timeout=0.7)
    (told,) = [record.getMessage() for record in caplog.records if "waiting" in record.msg]
    assert "dns:///nobody.invalid:50051" in told
