"""A TCP proxy in front of a service, which does harm at a chosen byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

Direction = Literal["up", "down"]
"""Towards the service, or from it to its caller."""

PIECE_BYTES = 65536
SLOW_PIECE_BYTES = 256
SLOW_PAUSE_SECONDS = 0.01


class ConnectionCutError(Exception):
    """The connection is to be broken off here."""


Harm = Callable[[bytes], Awaitable[bytes]]
"""Given what follows the chosen byte; returns what is forwarded or raises ConnectionCutError."""


@dataclass
class Trap:
    """Harm that is done once `left` more bytes have gone in a direction; `sprung` tells when."""

    direction: Direction
    left: int
    harm: Harm
    sprung: asyncio.Event = field(default_factory=asyncio.Event)


class FaultProxy:
    """Listens for callers of a service and passes their bytes on, one trap at a time.

    Attributes:
        name: The service.
        address: Where callers find it, always the same.
        target: Where the service is; None while it is away: callers are turned away then.
        passed: Bytes so far by direction.
        accepted: Connections so far.
        newest: The newest connection on which something went, by direction; counted from 1.
        turned_away: Connections that found no service.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = ""
        self.target: str | None = None
        self.passed: dict[Direction, int] = {"up": 0, "down": 0}
        self.accepted = 0
        self.newest: dict[Direction, int] = {"up": 0, "down": 0}
        self.turned_away = 0
        self._trap: Trap | None = None
        self._slow_bytes = 0
        self._changed = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen on a free port of loopback."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def close(self) -> None:
        """Break everything off and listen no more."""
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def connections(self) -> int:
        """Connections of callers under way."""
        return len(self._connections)

    def set(self, direction: Direction, after: int, harm: Harm) -> Trap:
        """Do harm once `after` more bytes have gone in `direction`."""
        self._trap = Trap(direction, after, harm)
        return self._trap

    def slow(self, nbytes: int) -> None:
        """Pass the next bytes on in small pieces, with pauses."""
        self._slow_bytes = nbytes

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; it is looked at when bytes go or callers come."""
        while not condition():
            await self._changed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.accepted += 1
        try:
            await self._pass_on(reader, writer, self.accepted)
        except (OSError, ConnectionCutError):
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()
            self._wake()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        if self.target is None:
            self.turned_away += 1
            return
        host, _, port = self.target.rpartition(":")
        try:
            their_reader, their_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            self.turned_away += 1
            return
        pumps = [
            asyncio.create_task(self._pump("up", reader, their_writer, number)),
            asyncio.create_task(self._pump("down", their_reader, writer, number)),
        ]
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in done:
                pump.result()
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            their_writer.transport.abort()

    async def _pump(
        self,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        number: int,
    ) -> None:
        while data := await reader.read(PIECE_BYTES):
            self.newest[direction] = max(self.newest[direction], number)
            trap = self._trap
            if trap is not None and trap.direction == direction:
                if len(data) > trap.left:
                    self._trap = None
                    await self._forward(direction, writer, data[: trap.left])
                    trap.sprung.set()
                    data = await trap.harm(data[trap.left :])
                else:
                    trap.left -= len(data)
            await self._forward(direction, writer, data)
        with contextlib.suppress(OSError):
            writer.write_eof()

    async def _forward(
        self, direction: Direction, writer: asyncio.StreamWriter, data: bytes
    ) -> None:
        while self._slow_bytes > 0 and data:
            piece, data = data[:SLOW_PIECE_BYTES], data[SLOW_PIECE_BYTES:]
            self._slow_bytes -= len(piece)
            await self._write(direction, writer, piece)
            await asyncio.sleep(SLOW_PAUSE_SECONDS)
        if data:
            await self._write(direction, writer, data)

    async def _write(self, direction: Direction, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(data)
        await writer.drain()
        self.passed[direction] += len(data)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
