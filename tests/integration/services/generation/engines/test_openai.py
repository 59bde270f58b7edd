"""A server of the OpenAI chat API behind the service."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.integration.services.generation.engines.served import named
from tests.integration.services.generation.harness import (
    TIMEOUT,
    Replica,
    push_of,
    refusal,
    replica,
    request,
)

from antiphon.clients.errors import CallError
from antiphon.clients.types import ChatMessage, Completion, FinishReason, Prompt, SamplingParameters
from antiphon.services.common.models import load_tokenizer

Folders = Callable[..., Path]


class ChatServer(ThreadingHTTPServer):
    """Answers with what it was asked last, and keeps what it was asked.

    `refusals` are statuses that it answers with first, one a request.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        self.refusals: list[int] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ChatServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.tokens.append(self.headers["authorization"])
        status, answer = 200, self._completion(body)
        if self.server.refusals:
            status, answer = self.server.refusals.pop(), {"error": {"message": "no such thing"}}
        else:
            self.server.asked.append({"path": self.path, **body})
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        words = body["messages"][-1]["content"].split()
        cut = len(words) > body["max_tokens"]
        message = {"role": "assistant", "content": " ".join(words[: body["max_tokens"]])}
        reason = "length" if cut else "stop"
        return {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "system_fingerprint": "f",
            "choices": [{"index": 0, "finish_reason": reason, "message": message}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def chat_server() -> Iterator[ChatServer]:
    with running() as server:
        yield server


@contextmanager
def running() -> Iterator[ChatServer]:
    server = ChatServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def options(server: ChatServer, **more: Any) -> dict[str, Any]:
    settings = {"model": "large-9", "user": "us"}
    return {
        "engine": "openai",
        "engine_address": server.url,
        "engine_settings": settings,
        **more,
    }


async def asked(
    r: Replica, *prompts: Prompt, sampling: SamplingParameters, samples: int = 1
) -> list[Completion]:
    call = replace(request(*prompts, samples=samples), sampling=sampling)
    got = [completion async for completion in r.client.generate(call, timeout=TIMEOUT)]
    return sorted(got, key=lambda c: (c.prompt_index, c.sample_index))


async def test_texts_and_chats_are_answered_with_every_setting_passed_on(
    tiny_folders: Folders, chat_server: ChatServer
) -> None:
    folder = tiny_folders(seed=0)
    tokenizer = load_tokenizer(folder)
    chat = (ChatMessage("system", "one"), ChatMessage("user", "cat dog cat dog"))
    sampling = named(temperature=0.5, top_p=0.9, top_k=7, max_new_tokens=3)
    async with replica(folder, **options(chat_server, engine_token="secret")) as r:
        info = await r.client.get_model_info(10)
        got = await asked(r, "red cat", chat, sampling=sampling, samples=2)
    assert [(c.text, c.finish_reason) for c in got] == [
        *[("red cat", FinishReason.END_TOKEN)] * 2,
        *[("cat dog cat", FinishReason.LENGTH)] * 2,
    ]
    assert got[0].token_ids == (
        *tokenizer.convert_tokens_to_ids(["red", "cat"]),
        tokenizer.eos_token_id,
    )
    first, other = chat_server.asked[0], chat_server.asked[-1]
    assert first["path"] == "/v1/chat/completions"
    for name, value in {
        "model": "large-9",
        "user": "us",
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "max_tokens": 3,
    }.items():
        assert first[name] == value
    said = {json.dumps(one["messages"]) for one in chat_server.asked}
    assert json.dumps([{"role": "user", "content": "red cat"}]) in said
    assert len({one["seed"] for one in chat_server.asked}) == 4
    assert set(chat_server.tokens) == {"Bearer secret"}
    assert (info.model, info.engine) == ("large-9", "openai")
    assert not info.capabilities.logprobs
    assert other["model"] == "large-9"


async def test_a_busy_server_is_asked_again_and_a_refusal_has_its_words(
    tiny_folders: Folders, chat_server: ChatServer
) -> None:
    """S8: transient and permanent failures; no token is sent where none was given."""
    folder = tiny_folders(seed=0)
    async with replica(folder, **options(chat_server)) as r:
        chat_server.refusals = [429, 503]
        assert len(await asked(r, "red", sampling=named(max_new_tokens=3))) == 1
        for status, code in (
            (400, grpc.StatusCode.INVALID_ARGUMENT),
            (401, grpc.StatusCode.PERMISSION_DENIED),
        ):
            chat_server.refusals = [status]
            with pytest.raises(CallError) as caught:
                await asked(r, "red", sampling=named(max_new_tokens=3))
            assert caught.value.code is code
            assert "no such thing" in caught.value.message
        with pytest.raises(CallError) as pushed:
            await r.push(push_of(folder, 1))
    assert set(chat_server.tokens) == {None}
    assert refusal(pushed) == (grpc.StatusCode.UNIMPLEMENTED, "FEATURE_UNAVAILABLE")
