"""A run that waits for services to start says so: nobody has to guess why nothing happens."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1.health import HealthServicer
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from tests.integration.clients.judges import Judge
from tests.integration.clients.servers import serving

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.errors import CallError
from antiphon.clients.generation import GenerationClient
from antiphon.clients.names import UnresolvedError
from antiphon.clients.retry import RetryPolicy
from antiphon.clients.reward import RewardClient
from antiphon.clients.transition import TransitionClient
from antiphon.clients.types import FieldError
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


@pytest.mark.parametrize("client_type", [RewardClient, TransitionClient])
async def test_a_judge_that_is_another_service_or_lets_nobody_in_is_refused_at_once(
    client_type: type[RewardClient | TransitionClient],
) -> None:
    other = TransitionClient if client_type is RewardClient else RewardClient
    health = HealthServicer()
    health.set("antiphon.v1.Other", HealthCheckResponse.SERVING)

    def another(server: grpc.aio.Server) -> None:
        add_HealthServicer_to_server(health, server)

    async with serving(another) as address, client_type(address) as client:
        with pytest.raises(FieldError, match=r"got another service, wanted antiphon\.v1"):
            await client.check(5)
        async with other(address) as too, asyncio.timeout(20):
            with pytest.raises(FieldError):
                await started(too, lambda: too.check(5), start_timeout=60, timeout=5)


@pytest.mark.parametrize("client_type", [RewardClient, TransitionClient])
@pytest.mark.parametrize(
    ("code", "refused", "waited_for"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, True, False),
        (grpc.StatusCode.PERMISSION_DENIED, True, False),
        (grpc.StatusCode.UNAVAILABLE, True, True),
        (grpc.StatusCode.INVALID_ARGUMENT, False, False),
    ],
)
async def test_what_a_judge_says_to_a_call_of_nothing(
    client_type: type[RewardClient | TransitionClient],
    code: grpc.StatusCode,
    refused: bool,
    waited_for: bool,
) -> None:
    """A service without health that is still starting is waited for too."""

    async def end(_: bytes, context: Any) -> None:
        await context.abort(code, "scripted")

    def register(server: grpc.aio.Server) -> None:
        methods = {
            name: grpc.unary_unary_rpc_method_handler(end)
            for name in ("GetRewardInfo", "Transition")
        }
        for service in ("antiphon.v1.RewardService", "antiphon.v1.TransitionService"):
            handlers = grpc.method_handlers_generic_handler(service, methods)
            server.add_generic_rpc_handlers((handlers,))

    async with serving(register) as address, client_type(address) as client:
        if not refused:
            await client.check(5)
            return
        with pytest.raises(CallError, match="scripted") as raised:
            await client.check(5)
        assert (raised.value.code, raised.value.transient) == (code, waited_for)
