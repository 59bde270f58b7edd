"""A trace goes from a caller's work through its call to the service that answers."""

from __future__ import annotations

import subprocess
import sys

import grpc
import pytest
from tests.integration.services.common.test_server import fine, make
from tests.support.otlp import collector

from antiphon.clients import tracing
from antiphon.clients.errors import CallError
from antiphon.clients.retry import RetryPolicy
from antiphon.clients.reward import RewardClient
from antiphon.services.common.errors import ServiceError

RPC = "antiphon.v1.RewardService/GetRewardInfo"
ONCE = RetryPolicy(attempts=1)


async def test_a_call_s_spans_are_one_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    async def told() -> str:
        with tracing.span("thinking"):
            return "fine"

    with collector() as collected:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collected.url)
        server = make(told, traces=True)
        await server.start()
        async with RewardClient(server.address, retry=ONCE) as client:
            with tracing.span("training_step", epoch=1):
                await client.get_info(20)
        await server.stop(0)
    (step,), (thinking,) = collected.named("training_step"), collected.named("thinking")
    called, answered = sorted(collected.named(RPC), key=lambda span: span.parent != step.id)
    assert [step.parent, called.parent, answered.parent, thinking.parent] == [
        "",
        step.id,
        called.id,
        answered.id,
    ]
    assert {span.trace for span in collected.spans} == {step.trace}
    assert {span.service for span in collected.spans} == {"antiphon-test"}
    assert step.attributes.keys() == {"epoch"}
    assert not any(span.failed for span in collected.spans)


async def test_a_failure_is_seen_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses() -> str:
        raise ServiceError(grpc.StatusCode.FAILED_PRECONDITION, "not now")

    with collector() as collected:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collected.url)
        server = make(refuses, traces=True)
        await server.start()
        async with RewardClient(server.address, retry=ONCE) as client:
            with pytest.raises(CallError, match="not now"):
                await client.get_info(20)
        await server.stop(0)
    assert [span.failed for span in collected.named(RPC)] == [True, True]


async def test_without_traces_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as collected:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collected.url)
        server = make(fine)
        await server.start()
        async with RewardClient(server.address, retry=ONCE) as client:
            with tracing.span("training_step"):
                await client.get_info(20)
        await server.stop(0)
    assert collected.spans == []


def test_opentelemetry_is_imported_only_when_it_is_on() -> None:
    code = (
        "import sys\n"
        "import antiphon.clients.generation, antiphon.services.common.server\n"
        "from antiphon.clients import tracing\n"
        "with tracing.span('a'), tracing.client_span('b') as metadata:\n"
        "    assert metadata == ()\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
