"""A server that speaks text-generation-inference's published API, for tests.

It samples from a real tiny model. Requests and its own answers are validated against the OpenAPI
document. As a program it is the launcher: it takes its time to load, and files in its control
folder make it crash, refuse, fail or wait.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.tgi.model import GoneError, Json, TextModel
from tests.support.tgi.openapi import Contract

POLL_SECONDS = 0.02


class Control:
    """Files by which a test tells servers what to do, and reads what they did.

    A file `NAME` that holds a number n makes the next n requests (or loads) do it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()

    def ask(self, name: str, times: int = 1) -> None:
        """Has it happen so many times."""
        (self.folder / name).write_text(str(times))

    def take(self, name: str) -> bool:
        """Whether it is to happen now."""
        file = self.folder / name
        with self._lock:
            left = int(file.read_text() or 0) if file.exists() else 0
            if left > 0:
                file.write_text(str(left - 1))
        return left > 0

    def left(self, name: str) -> int:
        """How many times are left."""
        file = self.folder / name
        return int(file.read_text() or 0) if file.exists() else 0

    def note(self, **values: Any) -> None:
        """Adds to what happened."""
        with self._lock, (self.folder / "notes.jsonl").open("a") as notes:
            notes.write(json.dumps(values) + "\n")

    def notes(self, kind: str) -> list[Json]:
        """What happened of one kind, oldest first."""
        file = self.folder / "notes.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [note for line in lines if (note := json.loads(line))["kind"] == kind]


class RefusedError(Exception):
    """An error answer."""

    def __init__(self, status: int, error: str, error_type: str) -> None:
        super().__init__(error)
        self.status = status
        self.body = {"error": error, "error_type": error_type}


class TgiServer:
    """The server; `limits` are options of the real one, by their names with underscores."""

    def __init__(
        self,
        folder: Path,
        control: Control,
        *,
        port: int = 0,
        adapter: tuple[str, Path] | None = None,
        **limits: int,
    ) -> None:
        self.model_id = str(folder)
        self.control = control
        self.adapter_id = adapter[0] if adapter else None
        self.model = TextModel(folder, adapter[1] if adapter else None)
        context = self.model.llama.context
        self.limits = {
            "max_concurrent_requests": 128,
            "max_input_tokens": context - 1,
            "max_total_tokens": context,
            "max_top_n_tokens": 5,
            **limits,
        }
        self.contract = Contract()
        self.running = 0
        self._lock = threading.Lock()
        self._http = _HttpServer(("127.0.0.1", port), self)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def serve(self) -> None:
        """Serves until `close`."""
        self._http.serve_forever(POLL_SECONDS)

    def __enter__(self) -> TgiServer:
        self._thread = threading.Thread(target=self.serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def generate(self, body: Json, connection: socket.socket) -> Json:
        """Answers a request, or raises RefusedError."""
        asked = body.get("parameters") or {}
        prompt = self.model.encode(body["inputs"])
        self._check(body["inputs"], asked, len(prompt))
        with self._lock:
            if self.running >= self.limits["max_concurrent_requests"]:
                raise RefusedError(429, "Model is overloaded", "overloaded")
            self.running += 1
        try:
            if self.control.take("overloaded"):
                raise RefusedError(429, "Model is overloaded", "overloaded")
            self.control.note(kind="request", running=self.running, model=self.model_id, **body)
            if self.control.take("crash-on-generate"):
                os._exit(9)
            if self.control.take("fail-generation"):
                raise RefusedError(424, "Request failed during generation: CUDA OOM", "generation")

            def step() -> None:
                while True:
                    if _closed(connection):
                        self.control.note(kind="dropped")
                        raise GoneError
                    if not self.control.left("hold"):
                        return
                    time.sleep(POLL_SECONDS)

            return self.model.generate(prompt, asked, step)
        finally:
            with self._lock:
                self.running -= 1

    def _check(self, inputs: str, asked: Json, tokens: int) -> None:
        """What the real router refuses."""
        new, top_n, limits = (
            asked.get("max_new_tokens", 100),
            asked.get("top_n_tokens"),
            self.limits,
        )
        top_p, best_of = asked.get("top_p"), asked.get("best_of") or 1
        problem = ""
        if not inputs:
            problem = "`inputs` cannot be empty"
        elif tokens > limits["max_input_tokens"]:
            most = limits["max_input_tokens"]
            problem = f"`inputs` must have less than {most} tokens. Given: {tokens}"
        elif tokens + new > limits["max_total_tokens"]:
            problem = (
                f"`inputs` tokens + `max_new_tokens` must be <= {limits['max_total_tokens']}. "
                f"Given: {tokens} `inputs` tokens and {new} `max_new_tokens`"
            )
        elif new < 1:
            problem = "`max_new_tokens` must be strictly positive"
        elif top_p is not None and not 0 < top_p < 1:
            problem = "`top_p` must be > 0.0 and < 1.0"
        elif top_n is not None and top_n > limits["max_top_n_tokens"]:
            most = limits["max_top_n_tokens"]
            problem = f"`top_n_tokens` must be >= 0 and <= {most}. Given: {top_n}"
        elif best_of > 1 and asked.get("seed") is not None:
            problem = "`seed` must not be set when `best_of` > 1"
        elif asked.get("adapter_id") not in (None, self.adapter_id):
            problem = f"adapter {asked['adapter_id']} is not loaded"
        if problem:
            raise RefusedError(422, f"Input validation error: {problem}", "validation")

    def info(self) -> Json:
        """The answer of /info."""
        return {
            "model_id": self.model_id,
            "max_best_of": 2,
            "max_client_batch_size": 4,
            "max_stop_sequences": 4,
            "validation_workers": 2,
            "router": "text-generation-router",
            "version": "3.3.6-dev0",
            **{name: self.limits[name] for name in list(self.limits) if name != "max_top_n_tokens"},
        }


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], tgi: TgiServer) -> None:
        self.tgi = tgi
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HttpServer

    def do_GET(self) -> None:
        tgi = self.server.tgi
        if self.path == "/health":
            ill = tgi.control.take("unhealthy")
            self._answer(503 if ill else 200, _ILL if ill else None)
        elif self.path == "/info":
            self._answer(200, tgi.info())
        elif self.path == "/metrics":
            self._send(200, f"tgi_batch_current_size {tgi.running}\n".encode(), "text/plain")
        else:
            self._send(404, b"", "text/plain")

    def do_POST(self) -> None:
        tgi = self.server.tgi
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert "authorization" not in self.headers
        try:
            if problem := tgi.contract.problem_of_request(self.path, body):
                raise RefusedError(422, f"Input validation error: {problem}", "validation")
            if self.path == "/tokenize":
                ids = tgi.model.encode(body["inputs"])
                pieces = [{**tgi.model.described(i), "start": 0, "stop": 0} for i in ids]
                self._answer(200, pieces)
                return
            answer = tgi.generate(body, self.connection)
            self._answer(200, [answer] if self.path == "/" else answer)
        except RefusedError as error:
            self._answer(error.status, error.body)
        except GoneError:
            self.close_connection = True

    def _answer(self, status: int, body: Any) -> None:
        """Answers with JSON, and tells the test where that breaks the published contract."""
        method = self.command.lower()
        problem = self.server.tgi.contract.problem_of_answer(method, self.path, status, body)
        if problem:
            self.server.tgi.control.note(kind="broken", path=self.path, problem=problem)
        self._send(status, b"" if body is None else json.dumps(body).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


_ILL = {"error": "unhealthy", "error_type": "healthcheck"}


def _closed(connection: socket.socket) -> bool:
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable) and connection.recv(1, socket.MSG_PEEK) == b""


def main() -> None:
    """The launcher."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-id", required=True, type=Path)
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--control", required=True, type=Path)
    for name in ("max-concurrent-requests", "max-input-tokens", "max-total-tokens"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--max-top-n-tokens", type=int, default=5)
    options = vars(parser.parse_args())
    control = Control(options.pop("control"))
    folder, port = options.pop("model_id"), options.pop("port")
    control.note(kind="load", model=str(folder), pid=os.getpid())
    if control.take("crash-on-load"):
        print("RuntimeError: CUDA out of memory", flush=True)
        sys.exit(1)
    name, _, path = os.environ.get("LORA_ADAPTERS", "").partition("=")
    server = TgiServer(
        folder,
        control,
        port=port,
        adapter=(name, Path(path)) if path else None,
        **{key: value for key, value in options.items() if value is not None},
    )
    server.serve()


if __name__ == "__main__":
    main()
