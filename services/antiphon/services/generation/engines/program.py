"""A server that this service runs as a child: started, asked for its health, and ended."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from antiphon.services.common.errors import StartError
from antiphon.services.generation.engines import keeper

POLL_SECONDS = 0.1
_LOG_LINES = 15
_END_SECONDS = 2 * keeper.GRACE_SECONDS + 5.0


def filled(command: str, **values: object) -> list[str]:
    """A command line's arguments with ``{model}``, ``{port}`` and so on filled in.

    Raises:
        StartError: It names something else in braces, lacks one of the values, or is none.
    """
    names = ", ".join(f"{{{name}}}" for name in values)
    try:
        arguments = [part.format(**values) for part in shlex.split(command)]
    except (KeyError, IndexError, ValueError) as error:
        raise StartError(f"--engine-command {command!r}: {error}; wanted {names}") from error
    missing = [f"{{{name}}}" for name in values if f"{{{name}}}" not in command]
    if missing:
        raise StartError(f"--engine-command {command!r}: wanted {' and '.join(missing)} in it")
    return arguments


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get_json(url: str, timeout: float = 5.0) -> Any:
    """What a GET answers, None where the answer has no body.

    Raises:
        OSError: Nobody answers, or with an error.
        ValueError: It is not JSON.
    """
    with urllib.request.urlopen(url, timeout=timeout) as answer:  # noqa: S310 - http by construction
        body = answer.read()
    return json.loads(body) if body else None


def answers(url: str, timeout: float = 5.0) -> bool:
    """Whether a GET is answered with success."""
    try:
        with urllib.request.urlopen(url, timeout=timeout):  # noqa: S310
            return True
    except (OSError, http.client.HTTPException):
        return False


class Program:
    """A child process that serves HTTP on a port of loopback.

    Args:
        arguments: Its command line.
        port: Where it will serve.
        environ: Variables besides those of this process.
    """

    def __init__(self, arguments: list[str], port: int, environ: Mapping[str, str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = tempfile.NamedTemporaryFile(prefix="antiphon-engine-", suffix=".log")  # noqa: SIM115
        self._name = arguments[0]
        self._ending = threading.Lock()
        command = [sys.executable, "-S", "-E", str(keeper.__file__), *arguments]
        self._process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environ},
        )

    @property
    def exit_code(self) -> int | None:
        """What it ended with; None while it runs."""
        return self._process.poll()

    def wait_healthy(self, timeout: float, given_up: Callable[[], bool]) -> None:
        """Blocks until ``/health`` answers.

        Raises:
            StartError: It ended, did not answer in `timeout` seconds, or was `given_up`. The
                program is gone then.
        """
        deadline = time.monotonic() + timeout
        problem = ""
        while not problem and not answers(f"{self.url}/health"):
            if self.exit_code is not None:
                problem = f"ended with code {self.exit_code} before it served"
            elif time.monotonic() > deadline:
                problem = f"did not serve within {timeout:g} s (--engine-start-timeout)"
            elif given_up():
                problem = "is no longer wanted"
            else:
                time.sleep(POLL_SECONDS)
        if problem:
            log = self.log_end()
            self.end()
            raise StartError(f"{self._name} {problem}; its log ends with:\n{log}")

    def log_end(self) -> str:
        """The last lines that it wrote."""
        lines = Path(self._log.name).read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:]) or "(nothing)"

    def end(self) -> None:
        """Ends it and all that it started. Blocks."""
        with self._ending:
            if self._process.stdin is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._log.close()
