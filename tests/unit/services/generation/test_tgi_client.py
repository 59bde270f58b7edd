"""Requests to text-generation-inference: what is sent, waited out, and believed."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest

from antiphon.clients.types import SamplingParameters
from antiphon.services.common.errors import ServiceError
from antiphon.services.generation.engine import EncodedPrompt
from antiphon.services.generation.engines.samples import Sample
from antiphon.services.generation.engines.tgi.client import TgiClient, TgiLimits

SAMPLING = SamplingParameters(0.7, 5, None, max_new_tokens=1)
PROMPT = EncodedPrompt((4, 5), seeds=(8,), prompt="the")


class Scripted(ThreadingHTTPServer):
    """Answers with `refusals`, one a request, then with one token.

    Attributes:
        prefill: The ids that it says it made of a prompt.
        asked: Bodies, oldest first.
        connections: Ports that requests came from.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.refusals: list[int] = []
        self.prefill = list(PROMPT.token_ids)
        self.asked: list[dict[str, Any]] = []
        self.connections: set[int] = set()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def do_POST(self) -> None:
        server = self.server
        server.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        server.connections.add(self.client_address[1])
        if server.refusals:
            busy = {"error": "Model is overloaded", "error_type": "overloaded"}
            self._answer(server.refusals.pop(0), busy)
            return
        token = {"text": "x", "logprob": -0.5, "special": False}
        details = {
            "finish_reason": "length",
            "generated_tokens": 1,
            "prefill": [{**token, "id": id_} for id_ in server.prefill],
            "tokens": [{**token, "id": 7}],
        }
        self._answer(200, [{"generated_text": "x", "details": details}])

    def _answer(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[Scripted]:
    with Scripted() as scripted:
        thread = threading.Thread(target=scripted.serve_forever, args=(0.02,))
        thread.start()
        yield scripted
        scripted.shutdown()
        thread.join()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What is waited between attempts, without the waiting."""
    waited: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        waited.append(seconds)
        await sleep(0)

    monkeypatch.setattr("antiphon.services.generation.engines.tgi.client.asyncio.sleep", note)
    return waited


@asynccontextmanager
async def connected(server: Scripted, *, at_once: int = 9) -> AsyncGenerator[TgiClient]:
    limits = TgiLimits("m", at_once, 9, 10, 5)
    client = TgiClient(f"http://127.0.0.1:{server.server_address[1]}", limits, 10)
    yield client
    await client.close()


def sample(number: int = 0) -> Sample:
    return Sample(0, number, PROMPT, seed=8 + number)


async def test_an_overload_is_waited_out_longer_each_time_and_not_for_ever(
    server: Scripted, pauses: list[float]
) -> None:
    """S8: 429 and 503 alike, with jitter; a server that stays so is RESOURCE_EXHAUSTED."""
    async with connected(server) as client:
        server.refusals = [429, 503, 503]
        sampled = await client.sample(sample(), "the", SAMPLING)
        assert (sampled.token_ids, len(server.asked)) == ([7], 4)
        pauses.clear()
        server.refusals = [503] * 100
        with pytest.raises(ServiceError, match="overloaded after 10 attempts") as caught:
            await client.sample(sample(), "the", SAMPLING)
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(server.asked) == 14
    whole = [min(0.1 * 2**attempt, 5.0) for attempt in range(9)]
    assert len(pauses) == len(whole)
    for waited, wanted in zip(pauses, whole, strict=True):
        assert 0.5 * wanted <= waited <= 1.5 * wanted


async def test_samples_are_requests_of_their_own_over_connections_that_are_kept(
    server: Scripted,
) -> None:
    """A seed each and no `best_of`, which would forbid seeds."""
    async with connected(server, at_once=2) as client:
        for first in (0, 6):
            samples = (sample(number) for number in range(first, first + 6))
            await asyncio.gather(*(client.sample(one, "the", SAMPLING) for one in samples))
    asked = [body["parameters"] for body in server.asked]
    assert len({one["seed"] for one in asked}) == len(asked) == 12
    assert all(one.get("best_of") is None for one in asked)
    assert len(server.connections) <= 2


async def test_a_prompt_that_the_server_reads_as_other_tokens_is_an_error(server: Scripted) -> None:
    """L13: the ids that it reports are those that the learner trains after."""
    server.prefill = [4, 6]
    async with connected(server) as client:
        with pytest.raises(ServiceError, match=r"made token ids \(4, 6\).*wanted \(4, 5\)") as it:
            await client.sample(sample(), "the", SAMPLING)
    assert it.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert server.asked[0]["parameters"]["decoder_input_details"] is True
