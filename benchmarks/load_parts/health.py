"""Asks a server's health again and again from a process of its own, and says how long it took.

python -m benchmarks.load_parts.health ADDRESS    (until standard input ends; then JSON)
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any

import grpc
from benchmarks.results import require
from grpc_health.v1 import health_pb2, health_pb2_grpc

PAUSE_SECONDS = 0.01
ANSWER_SECONDS = 60.0


class HealthWatch:
    """Watches a server while the block runs; `seconds` are those of each check, in order."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.seconds: list[float] = []

    def __enter__(self) -> HealthWatch:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load_parts.health", self._address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # It has begun.
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        answers, _ = self._process.communicate(timeout=2 * ANSWER_SECONDS)
        if kind is None:
            self.seconds = json.loads(answers)


def main() -> None:
    """Ask until standard input ends."""
    ended = threading.Event()
    seconds: list[float] = []
    with grpc.insecure_channel(sys.argv[1]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
        request = health_pb2.HealthCheckRequest()
        stub.Check(request, timeout=ANSWER_SECONDS)
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        print("begun", flush=True)
        while not ended.wait(PAUSE_SECONDS) or not seconds:
            began = time.perf_counter()
            answer = stub.Check(request, timeout=ANSWER_SECONDS)
            seconds.append(time.perf_counter() - began)
            serving = answer.status == health_pb2.HealthCheckResponse.SERVING
            require(serving, f"health answered {answer.status}")
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
