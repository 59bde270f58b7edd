"""The processes of a chaotic run: four services behind proxies, and the learner."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil
from tests.chaos.proxy import FaultProxy
from tests.support.certificates import Certificate

from antiphon.learner.run.nursery import Born, Nursery

POLL_SECONDS = 0.02
START_SECONDS = 120.0
END_SECONDS = 30.0


class Births:
    """A nursery that is asked for one process at a time."""

    def __init__(self) -> None:
        self._nursery = Nursery()
        self._asked = threading.Lock()

    async def start(
        self, arguments: Sequence[str], *, output: IO[bytes], environ: Mapping[str, str]
    ) -> Born:
        """Start `antiphon` with these arguments."""
        return await asyncio.to_thread(self._start, arguments, output, environ)

    def _start(
        self, arguments: Sequence[str], output: IO[bytes], environ: Mapping[str, str]
    ) -> Born:
        with self._asked:
            return self._nursery.start(arguments, output=output, environ=environ)

    def close(self) -> None:
        """End it."""
        self._nursery.close()


@dataclass
class Program:
    """An `antiphon` command, started again as often as is needed.

    Attributes:
        name: What it is.
        arguments: Of the command.
        births: Forks it, since importing torch takes seconds.
        folder: Gets its log and address file.
        environ: Added to its environment.
        born: The process of now.
        lives: How often it was started.
    """

    name: str
    arguments: Sequence[str]
    births: Births
    folder: Path
    environ: Mapping[str, str]
    born: Born | None = None
    lives: int = 0

    @property
    def log(self) -> str:
        """All that its processes have written."""
        return self.log_file.read_text(errors="replace")

    @property
    def log_file(self) -> Path:
        """Where that is."""
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """The process of now."""
        assert self.born is not None
        return self.born.pid

    async def spawn(self, *more: str) -> None:
        """Start a process."""
        with self.log_file.open("ab") as output:
            self.born = await self.births.start(
                [*self.arguments, *more], output=output, environ=self.environ
            )
        self.lives += 1

    def signal(self, number: int) -> None:
        """Send the process of now a signal."""
        os.kill(self.pid, number)

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        born = self.born
        assert born is not None
        while (code := born.poll()) is None:
            await asyncio.sleep(POLL_SECONDS)
        return code

    async def stop(self) -> int:
        """SIGTERM, then its exit code."""
        self.signal(signal.SIGTERM)
        async with asyncio.timeout(END_SECONDS):
            return await self.ended()


@dataclass
class Service(Program):
    """A service behind a proxy."""

    proxy: FaultProxy = field(default_factory=lambda: FaultProxy(""))

    @property
    def address_file(self) -> Path:
        """Where it writes its addresses."""
        return self.folder / f"{self.name}.address.json"

    async def start(self) -> None:
        """Start it, and let callers through once it serves."""
        ports = ("--port", "0", "--address-file", str(self.address_file))
        await self.spawn(*ports)
        async with asyncio.timeout(START_SECONDS):
            while (address := self._address()) is None:
                assert self.born is not None
                assert self.born.poll() is None, self.log
                await asyncio.sleep(POLL_SECONDS)
        self.proxy.target = address

    def _address(self) -> str | None:
        if not self.address_file.exists():
            return None
        written = json.loads(self.address_file.read_text())
        return str(written["address"]) if written["pid"] == self.pid else None


@dataclass(frozen=True)
class Traces:
    """What a process holds of the machine."""

    threads: int
    files: int
    connections: int


def traces(pid: int) -> Traces:
    """What a process holds now."""
    process = psutil.Process(pid)
    established = [c for c in process.net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED]
    return Traces(process.num_threads(), process.num_fds(), len(established))


def services(
    births: Births,
    folder: Path,
    models: Sequence[Path],
    certificate: Certificate,
    token_file: Path,
    environ: Mapping[str, str],
) -> dict[str, Service]:
    """The four services of a run, not started yet."""
    guard = (
        *("--tls-cert", str(certificate.cert), "--tls-key", str(certificate.key)),
        *("--token-file", str(token_file), "--metrics-port", "0"),
    )
    arguments = {
        f"agent-{agent}": (
            *("generation", "--model", str(model), "--no-weights"),
            *("--agent", str(agent), "--threads", "1"),
        )
        for agent, model in enumerate(models)
    }
    arguments["reward"] = ("reward", "tests.chaos.task:reward")
    arguments["transition"] = ("transition", "tests.chaos.task:transition")
    return {
        name: Service(
            name,
            ("serve", *arguments[name], *guard),
            births,
            folder,
            environ,
            proxy=FaultProxy(name),
        )
        for name in arguments
    }
