"""Requests to servers of one's own wait as long as their caller does."""

from __future__ import annotations

import socket
import time

import httpx2
import pytest
from huggingface_hub.errors import InferenceTimeoutError

from antiphon.services.generation.engines.hub_client import inference_client, wanted_until


@pytest.fixture
def timeouts(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float | None]]:
    """What each request is given, and no connection."""
    given: list[dict[str, float | None]] = []

    async def refuse(_: httpx2.AsyncHTTPTransport, request: httpx2.Request) -> httpx2.Response:
        given.append(request.extensions["timeout"])
        raise httpx2.ConnectError("nobody is there")

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", refuse)
    return given


async def test_a_server_that_never_answers_ends_the_request() -> None:
    """S5: it takes the connection, and then says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = inference_client(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with wanted_until(time.monotonic() + 0.1), pytest.raises(InferenceTimeoutError):
            await client.text_generation("the", details=True)
        await client.close()  # type: ignore[no-untyped-call]


async def test_a_request_waits_until_its_caller_gives_up_and_not_longer_to_connect(
    timeouts: list[dict[str, float | None]],
) -> None:
    """S8: an answer of an hour is waited for where the call may take that; none is after it."""
    client = inference_client("http://127.0.0.1:9")
    for seconds in (3600.0, 2.0, -1.0, None):
        deadline = None if seconds is None else time.monotonic() + seconds
        with wanted_until(deadline), pytest.raises(httpx2.ConnectError):
            await client.text_generation("the", details=True)
    with pytest.raises(httpx2.ConnectError):
        await client.text_generation("the", details=True)
    await client.close()  # type: ignore[no-untyped-call]
    hour, short, past, never, outside = timeouts
    assert 3500 < (hour["read"] or 0) <= 3600
    assert hour["connect"] == 10
    assert 0 < (short["read"] or 0) <= 2
    assert short["connect"] == short["read"]
    assert 0 < (past["read"] or 0) < 0.1
    assert (never["read"], outside["read"]) == (None, None)
