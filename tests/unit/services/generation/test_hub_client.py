"""Requests to other people's servers end, whatever those do."""

from __future__ import annotations

import socket

import httpx2
import pytest
from huggingface_hub.errors import InferenceTimeoutError

from antiphon.services.generation.engines import hub_client


async def test_a_server_that_never_answers_ends_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S5: it takes the connection, and then says nothing."""
    monkeypatch.setattr(hub_client, "TIMEOUT", httpx2.Timeout(0.1))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = hub_client.inference_client(f"http://127.0.0.1:{silent.getsockname()[1]}")
        try:
            with pytest.raises(InferenceTimeoutError):
                await client.text_generation("the", details=True)
        finally:
            await client.close()  # type: ignore[no-untyped-call]


def test_requests_wait_for_a_connection_shorter_than_for_an_answer() -> None:
    connect, read = hub_client.TIMEOUT.connect, hub_client.TIMEOUT.read
    assert connect is not None
    assert read is not None
    assert connect < read
