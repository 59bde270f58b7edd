"""A text-generation-inference that has ended comes back, whatever goes wrong in between."""

from __future__ import annotations

import asyncio
import http.server
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.models import tiny_folder

from antiphon.clients.types import LoadedWeights
from antiphon.services.common.errors import StartError
from antiphon.services.generation.engines.program import Program, answers, free_port
from antiphon.services.generation.engines.served_model import ServedModel
from antiphon.services.generation.engines.tgi.client import TgiLimits
from antiphon.services.generation.engines.tgi.server import RunningServer, found
from antiphon.services.generation.engines.tgi.supervisor import Supervisor

INFO = b"""{"model_id": "m", "max_concurrent_requests": 1, "max_input_tokens": 9,
            "max_total_tokens": 10}"""


class Breaking(http.server.BaseHTTPRequestHandler):
    """Answers as the server does up to ``/tokenize``, and with no HTTP at ``/odd``."""

    def do_GET(self) -> None:
        if self.path == "/odd":
            self.wfile.write(b"what?\r\n\r\n")
        else:
            self._answer(INFO)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/tokenize":
            self.wfile.write(b"what?\r\n\r\n")
        else:
            self._answer(b"{}")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def breaking() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Breaking) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_server_that_breaks_off_while_it_is_examined_has_not_started(
    breaking: str, tmp_path: Path
) -> None:
    """S10: such a start is tried again, as any other that fails."""
    served = ServedModel(str(tiny_folder(tmp_path)))
    with pytest.raises(StartError, match="/tokenize"):
        found(breaking, LoadedWeights(), served)


def test_what_is_no_http_is_no_answer(breaking: str) -> None:
    assert answers(f"{breaking}/health")
    assert not answers(f"{breaking}/odd")


async def test_a_server_comes_back_after_a_start_that_failed_unexpectedly(tmp_path: Path) -> None:
    """S10: the watch outlives any error, so a server that ended is not gone for good."""
    limits = TgiLimits("m", 1, 9, 10, 5)
    ended = Program([sys.executable, "-c", ""], free_port(), {})
    loaded = LoadedWeights("run", 1, 3)
    failures = [OSError("no space left"), RuntimeError("odd")]
    loop, again = asyncio.get_running_loop(), asyncio.Event()

    def launch(folder: Path, served: LoadedWeights, _: Callable[[], bool]) -> RunningServer:
        loop.call_soon_threadsafe(again.set)
        if failures:
            raise failures.pop()
        return RunningServer("http://127.0.0.1:9", served, limits, 10, folder=folder)

    server = RunningServer(ended.url, loaded, limits, 10, ended, tmp_path)
    supervisor = Supervisor(launch, server)
    supervisor.start()
    try:
        async with asyncio.timeout(30):
            await again.wait()
            async with supervisor.route() as route:
                assert route.server.url == "http://127.0.0.1:9"
    finally:
        await supervisor.stop()
    assert not failures
    assert supervisor.loaded == loaded
