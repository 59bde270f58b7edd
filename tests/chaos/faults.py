"""Does the faults of a plan, one after the other, each once the one before is overcome."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import grpc
import grpc.aio
from tests.chaos.plan import LEARNER, Fault
from tests.chaos.programs import Program, Service
from tests.chaos.proxy import ConnectionCutError, Direction

from antiphon.v1 import generation_pb2, learner_pb2, reward_pb2, transition_pb2

BREAK_CONNECTIONS = ("kill", "restart", "cut", "corrupt")
SHORT_STOP_SECONDS = 0.3
LONGEST_STOP_SECONDS = 8.0
SLOW_BYTES = 6000
CORRUPTED_BYTES = 3
FLOOD_CONNECTIONS = 60
FLOOD_CALLS = 100
FLOOD_BYTES = 20_000


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
    done: str
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
        tasks: list[asyncio.Task[str]] = []
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

    async def _harm(self, fault: Fault, rest: bytes) -> tuple[Awaitable[str], bytes]:
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

    async def _end(self, fault: Fault) -> str:
        """SIGKILL or SIGTERM; a service is started again once callers were turned away."""
        victim = self._victim(fault)
        number = signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM
        lives = victim.lives
        victim.signal(number)
        if not isinstance(victim, Service):
            while victim.lives == lives:
                await asyncio.sleep(0.02)
            return f"{number.name}, then resumed"
        code = await victim.ended()
        proxy = victim.proxy
        proxy.target = None
        wanted = proxy.turned_away + 1 + int(3 * fault.dice)
        await proxy.until(lambda: proxy.turned_away >= wanted)
        await victim.start()
        return f"{number.name} (ended with {code}), started again"

    async def _stop(self, fault: Fault) -> str:
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
                return "SIGSTOP until called again"
            return "SIGSTOP for a moment"
        finally:
            victim.signal(signal.SIGCONT)

    async def _flood(self, fault: Fault) -> str:
        """Connections with noise, and calls of whom nobody knows."""
        victim = self._victim(fault)
        if isinstance(victim, Service):
            address = victim.proxy.target
            credentials = grpc.ssl_channel_credentials(self._ca)
        else:
            address, credentials = self._learner_address(), None
        if address is None:
            return "nobody there to flood"
        noise = asyncio.create_task(_noise(address, fault.dice))
        codes = await _strangers(fault.victim, address, credentials)
        await noise
        return f"{FLOOD_CONNECTIONS} connections of noise, {FLOOD_CALLS} calls: {codes}"


async def _said(text: str) -> str:
    return text


def _corrupted(data: bytes, dice: float) -> bytes:
    chance = random.Random(dice)
    changed = bytearray(data)
    for _ in range(CORRUPTED_BYTES):
        changed[chance.randrange(len(changed))] ^= 1 + chance.randrange(255)
    return bytes(changed)


async def _noise(address: str, dice: float) -> None:
    """Connections that say nothing, half of a greeting, or noise; dropped all at once."""
    host, _, port = address.rpartition(":")
    chance = random.Random(dice)
    sent = [
        b"",
        b"PRI * HTTP/2.0\r\n\r\nSM",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        chance.randbytes(FLOOD_BYTES),
    ]

    async def one(data: bytes) -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(data)
                await writer.drain()
                if len(data) > 100:
                    await reader.read(100)
                else:
                    await asyncio.sleep(0)
            finally:
                writer.transport.abort()

    await asyncio.gather(*(one(sent[n % len(sent)]) for n in range(FLOOD_CONNECTIONS)))


_METHODS = {
    "agent-0": ("GenerationService/GetModelInfo", generation_pb2.GetModelInfoRequest()),
    "agent-1": ("GenerationService/GetModelInfo", generation_pb2.GetModelInfoRequest()),
    "reward": ("RewardService/Score", reward_pb2.ScoreRequest(run_id="nobody")),
    "transition": ("TransitionService/Transition", transition_pb2.TransitionRequest()),
    LEARNER: ("LearnerService/GetRun", learner_pb2.GetRunRequest()),
}


async def _strangers(victim: str, address: str, credentials: grpc.ChannelCredentials | None) -> str:
    """Many calls at once without a token; how they ended, as text."""
    name, request = _METHODS[victim]
    channel = (
        grpc.aio.insecure_channel(address)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials)
    )
    async with channel:
        method = channel.unary_unary(
            f"/antiphon.v1.{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=bytes,
        )

        async def one() -> str:
            try:
                await method(request, timeout=10)
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)
            return "OK"

        codes = await asyncio.gather(*(one() for _ in range(FLOOD_CALLS)))
    return ", ".join(f"{codes.count(code)} {code}" for code in sorted(set(codes)))
