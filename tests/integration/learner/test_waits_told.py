"""A run that waits for services to start says so: nobody has to guess why nothing happens."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.errors import CallError
from antiphon.clients.generation import GenerationClient
from antiphon.clients.names import UnresolvedError
from antiphon.clients.retry import RetryPolicy
from antiphon.learner.weights import start_wait
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
        with caplog.at_level(logging.WARNING), pytest.raises(CallError, match="UNAVAILABLE"):
            await model_infos([Replica(address, client)], start_timeout=0.7, timeout=5)
    (told,) = [record.getMessage() for record in caplog.records if "waiting" in record.msg]
    assert told.startswith("waiting for a service, 0.7 s at most (start_timeout): ")
    assert address in told
    assert "UNAVAILABLE" in told


async def test_a_name_that_nobody_is_behind_yet(caplog: pytest.LogCaptureFixture) -> None:
    name = Endpoint.of("dns:///nobody.invalid:50051")
    with caplog.at_level(logging.WARNING), pytest.raises(UnresolvedError):
        await resolve_all([name], timeout=5, start_timeout=0.7)
    (told,) = [record.getMessage() for record in caplog.records if "waiting" in record.msg]
    assert "dns:///nobody.invalid:50051" in told
