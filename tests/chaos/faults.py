"""Does the faults of a plan, one after the other, each once the one before is overcome."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import grpc
import grpc.aio
from tests.chaos.flood import CALLS, CONNECTIONS, NOBODY, noise_at, strangers_at
from tests.chaos.plan import LEARNER, Fault
from tests.chaos.programs import Program, Service
from tests.chaos.proxy import ConnectionCutError, Direction

BREAK_CONNECTIONS = ("kill", "restart", "cut", "corrupt")
SHORT_STOP_SECONDS = 0.3
LONGEST_STOP_SECONDS = 8.0
SLOW_BYTES = 6000
CORRUPTED_BYTES = 3
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Done:
    """What was done, in words, and how the calls of strangers ended, where any were made."""

    text: str
    strangers: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Outcome:
    """What became of a fault.

    Attributes:
        fault: The fault.
        byte: How many bytes had gone in its direction.
        done: What was done.
        seconds: Until the victim was heard again.
    """

    fault: Fault
    byte: int
    done: Done
    seconds: float


class Faults:
    """Does faults to a run.

    Args:
        services: The services, by name.
        learner: The learner, which somebody else starts again.
        ca: Certificate of whoever signed the services' certificates.
        learner_address: Where the learner's own service is; None where it is not there.
    """

    def __init__(
        self,
        services: Mapping[str, Service],
        learner: Program,
        *,
        ca: bytes,
        learner_address: Callable[[], str | None],
    ) -> None:
        self._services = services
        self._learner = learner
        self._ca = ca
        self._learner_address = learner_address

    async def do(self, fault: Fault) -> Outcome:
        """Wait for the fault's byte, do it, and wait until the victim is heard again.

        Services speak downwards, the learner upwards.
        """
        proxy = self._services[fault.proxy].proxy
        tasks: list[asyncio.Task[Done]] = []
        began: list[float] = []

        async def harm(rest: bytes) -> bytes:
            began.append(time.monotonic())
            done, rest = await self._harm(fault, rest)
            tasks.append(asyncio.ensure_future(done))
            if not rest:
                raise ConnectionCutError
            return rest

        trap = proxy.set(fault.direction, fault.after, harm)
        await trap.sprung.wait()
        byte = proxy.passed[fault.direction]
        heard: Direction = "up" if fault.victim == LEARNER else "down"
        await proxy.until(lambda: bool(tasks))
        connections = proxy.accepted
        done = await tasks[0]
        if fault.kind in BREAK_CONNECTIONS:
            await proxy.until(lambda: proxy.newest[heard] > connections)
        else:
            passed = proxy.passed[heard]
            await proxy.until(lambda: proxy.passed[heard] > passed)
        return Outcome(fault, byte, done, time.monotonic() - began[0])

    async def _harm(self, fault: Fault, rest: bytes) -> tuple[Awaitable[Done], bytes]:
        """What goes on beside the traffic, and what is passed on of it now; nothing cuts it."""
        if fault.kind == "cut":
            return _said("cut"), b""
        if fault.kind == "corrupt":
            return _said(f"{CORRUPTED_BYTES} bytes changed"), _corrupted(rest, fault.dice)
        if fault.kind == "slow":
            self._services[fault.proxy].proxy.slow(SLOW_BYTES)
            return _said(f"{SLOW_BYTES} bytes slowly"), rest
        if fault.kind == "flood":
            return self._flood(fault), rest
        if fault.kind == "stop":
            return self._stop(fault), rest
        return self._end(fault), rest if fault.kind == "restart" else b""

    def _victim(self, fault: Fault) -> Program:
        return self._learner if fault.victim == LEARNER else self._services[fault.victim]

    async def _end(self, fault: Fault) -> Done:
        """SIGKILL or SIGTERM; a service is started again once callers were turned away."""
        victim = self._victim(fault)
        number = signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM
        lives = victim.lives
        victim.signal(number)
        if not isinstance(victim, Service):
            while victim.lives == lives:
                await asyncio.sleep(POLL_SECONDS)
            return Done(f"{number.name}, then resumed")
        code = await victim.ended()
        proxy = victim.proxy
        proxy.target = None
        wanted = proxy.turned_away + 1 + int(3 * fault.dice)
        await proxy.until(lambda: proxy.turned_away >= wanted)
        await victim.start()
        return Done(f"{number.name} (ended with {code}), started again")

    async def _stop(self, fault: Fault) -> Done:
        """SIGSTOP until its caller has tried again, or for a moment; the learner for a moment."""
        victim = self._victim(fault)
        victim.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(SHORT_STOP_SECONDS)  # What was under way has arrived then.
            if isinstance(victim, Service) and fault.dice < 0.5:
                proxy = victim.proxy
                sent = proxy.passed["up"]
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LONGEST_STOP_SECONDS):
                        await proxy.until(lambda: proxy.passed["up"] > sent)
                return Done("SIGSTOP until called again")
            return Done("SIGSTOP for a moment")
        finally:
            victim.signal(signal.SIGCONT)

    async def _flood(self, fault: Fault) -> Done:
        """Connections with noise, and calls of whom nobody knows, until somebody answers them."""
        while True:
            if (address := self._address(fault)) is None:
                await asyncio.sleep(POLL_SECONDS)
                continue
            noise = asyncio.create_task(noise_at(address, fault.dice))
            codes = await strangers_at(fault.victim, address, self._credentials(fault))
            await noise
            if set(codes) - NOBODY:
                told = ", ".join(f"{count} {code}" for code, count in sorted(codes.items()))
                text = f"{CONNECTIONS} connections of noise, {CALLS} calls: {told}"
                return Done(text, codes)

    def _address(self, fault: Fault) -> str | None:
        victim = self._victim(fault)
        return victim.proxy.target if isinstance(victim, Service) else self._learner_address()

    def _credentials(self, fault: Fault) -> grpc.ChannelCredentials | None:
        """Of a connection; the learner's own service has loopback as its only guard here."""
        return None if fault.victim == LEARNER else grpc.ssl_channel_credentials(self._ca)


async def _said(text: str) -> Done:
    return Done(text)


def _corrupted(data: bytes, dice: float) -> bytes:
    chance = random.Random(dice)
    changed = bytearray(data)
    for _ in range(CORRUPTED_BYTES):
        changed[chance.randrange(len(changed))] ^= 1 + chance.randrange(255)
    return bytes(changed)
