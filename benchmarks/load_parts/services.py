"""The services that are loaded, each a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.results import require
from tests.support.models import tiny_folder

START_SECONDS = 120.0
MAX_MESSAGE = 4 << 20
MAX_REQUESTS = 64 << 20
STALL_SECONDS = 5.0
JUDGE = """
import time

def score(first, second):
    time.sleep(0.002 if len(first[0]) < 100 else 0.02)
    return [float(len(a) - len(b)) for a, b in zip(first, second)]
"""


@dataclass(frozen=True)
class Service:
    """A process and where it serves."""

    pid: int
    address: str


class Services:
    """A reward and a generation service, from the block's begin to its end.

    Args:
        folder: Gets their files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        (self._folder / "judge.py").write_text(JUDGE)
        tiny_folder(self._folder / "model")
        sizes = ("--max-message-bytes", str(MAX_MESSAGE), "--max-request-bytes", str(MAX_REQUESTS))
        self.reward = self._start("reward", "judge:score", *sizes)
        stall = ("--stall-seconds", str(STALL_SECONDS), "--threads", "1")
        self.generation = self._start("generation", "--model", str(self._folder / "model"), *stall)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _start(self, name: str, *arguments: str) -> Service:
        told = self._folder / f"{name}.json"
        command = [str(Path(sys.executable).parent / "antiphon"), "serve", name, *arguments]
        process = subprocess.Popen(
            [*command, "--address-file", str(told), "--log-level", "error", "--exit-with-parent"],
            env={**os.environ, "PYTHONPATH": _path(self._folder)},
            stdin=subprocess.PIPE,
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        deadline = time.monotonic() + START_SECONDS
        while not told.exists():
            require(process.poll() is None, f"{name} ended before it served")
            require(time.monotonic() < deadline, f"{name} did not serve in {START_SECONDS} s")
            time.sleep(0.05)
        return Service(process.pid, str(json.loads(told.read_text())["address"]))


def _path(folder: Path) -> str:
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
