"""Servers of the APIs of S3 and of GCS as processes, behind a relay that damages what is read."""

from __future__ import annotations

import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.processes import wait_until

PROGRAMS = Path(__file__).parents[2] / ".venv-emulators" / "bin"
HOST = "127.0.0.1"


@dataclass
class Relay:
    """Passes connections on to a server; cuts answers with many bytes, as often as is asked."""

    port: int
    cut_after: int = 1 << 12
    cuts: int = 0
    """Answers that are still to be cut."""
    was_cut: int = 0
    _listener: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self._listener = socket.create_server((HOST, 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
                server = socket.create_connection((HOST, self.port))
            except OSError:
                return
            threading.Thread(target=self._pass, args=(caller, server, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, caller, True), daemon=True).start()

    def _pass(self, come: socket.socket, go: socket.socket, answers: bool) -> None:
        passed = 0
        with suppress(OSError):
            while data := come.recv(1 << 11):
                passed += len(data)
                if answers and self.cuts and passed > self.cut_after:
                    self.cuts -= 1
                    self.was_cut += 1
                    break
                go.sendall(data)
        for end in (come, go):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def server(*command: str, port: int) -> Iterator[Relay]:
    """A server of `.venv-emulators`, once it listens, and the relay to it."""
    program = PROGRAMS / command[0]
    assert program.exists(), f"{program} is missing; run: make .venv-emulators/.installed"
    process = subprocess.Popen(
        [program, *command[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def listens() -> bool:
        assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
        with suppress(OSError), socket.create_connection((HOST, port)):
            return True
        return False

    relay = Relay(port)
    try:
        wait_until(listens, timeout=60, what=f"{command[0]} listens")
        yield relay
    finally:
        relay.close()
        process.terminate()
        process.wait(20)


@contextmanager
def s3(environment: pytest.MonkeyPatch) -> Iterator[tuple[str, Relay]]:
    """A root in a bucket of moto's S3; the environment says where it is."""
    port = free_port()
    with server("moto_server", "-H", HOST, "-p", str(port), port=port) as relay:
        environment.setenv("AWS_ENDPOINT_URL", relay.url)
        environment.setenv("AWS_ACCESS_KEY_ID", "any")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "any")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        put = urllib.request.Request(f"{relay.url}/weights", method="PUT")
        urllib.request.urlopen(put).close()
        yield "s3://weights/run", relay


@contextmanager
def gcs(environment: pytest.MonkeyPatch) -> Iterator[tuple[str, Relay]]:
    """A root in a bucket of gcp-storage-emulator; the environment says where it is."""
    port = free_port()
    options = ("--host", HOST, "--port", str(port), "--in-memory", "--default-bucket", "weights")
    with server("gcp-storage-emulator", "start", *options, port=port) as relay:
        environment.setenv("STORAGE_EMULATOR_HOST", relay.url)
        # Kinds of buckets are asked of an API that the emulator does not have.
        environment.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        yield "gs://weights/run", relay
