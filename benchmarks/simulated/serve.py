"""Processes of simulated services on unix sockets: generation replicas and slow rewards."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import grpc.aio
from benchmarks.simulated.engine import Pace, SimulatedEngine

from antiphon.clients import wire
from antiphon.clients.types import RewardInfo, Score
from antiphon.services.common.server import Server
from antiphon.services.common.server_settings import ServerSettings
from antiphon.services.generation.serving import generation_server
from antiphon.v1 import reward_pb2 as reward
from antiphon.v1.reward_pb2_grpc import (
    RewardServiceServicer,
    add_RewardServiceServicer_to_server,
)

FORKED = multiprocessing.get_context("forkserver")
START_SECONDS = 120.0


@dataclass(frozen=True)
class Services:
    """What one process serves.

    Attributes:
        sockets: Of the generation replicas.
        token_seconds: As of `Pace`, with `rows` and `shortest`.
        slow_socket: The replica that is slower, by `slow_factor`.
        on_swap: As of the product's engine.
        reward_socket: Of the reward service, empty for none.
        score_seconds: How long each score takes; any number at once.
    """

    sockets: tuple[str, ...] = ()
    token_seconds: float = 0.01
    rows: int = 64
    shortest: float = 1.0
    slow_socket: str = ""
    slow_factor: float = 1.0
    on_swap: Literal["finish", "continue"] = "finish"
    reward_socket: str = ""
    score_seconds: float = 0.0


class SlowRewards(RewardServiceServicer):
    """Scores by id, after a while; answers any number of calls at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def Score(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """A score for each joint action that differs within its node."""
        asked = wire.score_request_from_proto(request)
        if self._seconds:
            await asyncio.sleep(self._seconds)
        scores = [Score(action.id, reward_of(action.id)) for action in asked[2]]
        return wire.score_response_to_proto(scores)

    async def GetRewardInfo(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Many calls at once."""
        return wire.reward_info_to_proto(
            RewardInfo(name="simulated", max_batch_size=64, max_concurrent_calls=4096)
        )


def reward_of(joint_action_id: str) -> float:
    """A reward that is the same everywhere: the number of the joint action within its node."""
    return -1.0 - int(joint_action_id.rpartition("/")[2].rpartition(".")[2])


async def serve(folder: Path, services: Services, connection: Connection) -> None:
    """Say that this serves, and serve until the connection is closed."""
    servers: list[Server] = []
    for socket in services.sockets:
        factor = services.slow_factor if socket == services.slow_socket else 1.0
        pace = Pace(services.token_seconds * factor, services.rows, services.shortest)
        engine = SimulatedEngine(folder, pace, services.on_swap)
        engine.start()
        servers.append(generation_server(_settings(socket), engine, run_lease_seconds=0.0))
    if services.reward_socket:
        slow = SlowRewards(services.score_seconds)
        name = reward.DESCRIPTOR.services_by_name["RewardService"].full_name

        def register(server: grpc.aio.Server) -> None:
            add_RewardServiceServicer_to_server(slow, server)  # type: ignore[no-untyped-call]

        settings = _settings(services.reward_socket)
        servers.append(Server(settings, name="reward", services=[name], register=register))
    for server in servers:
        await server.start()
    connection.send("ready")
    await asyncio.to_thread(connection.poll, None)


def _settings(socket: str) -> ServerSettings:
    return ServerSettings.model_validate({"host": f"unix:{socket}", "metrics_port": None})


@contextlib.contextmanager
def served(folder: Path, *processes: Services) -> Iterator[list[int]]:
    """Each of these in a process of its own, ready within the block and gone after it.

    They are forked of one that has imported everything. Gives their process ids.
    """
    FORKED.set_forkserver_preload([__name__])
    started: list[tuple[BaseProcess, Connection]] = []
    try:
        for services in processes:
            ours, theirs = FORKED.Pipe()
            process = FORKED.Process(target=_run, args=(folder, services, theirs), daemon=True)
            process.start()
            theirs.close()
            started.append((process, ours))
        deadline = time.monotonic() + START_SECONDS
        for process, connection in started:
            if not connection.poll(max(0.0, deadline - time.monotonic())):
                raise RuntimeError(f"simulated services did not start within {START_SECONDS} s")
            try:
                connection.recv()
            except EOFError:
                raise RuntimeError(f"simulated services ended: {process.exitcode}") from None
        yield [process.pid or 0 for process, _ in started]
    finally:
        for process, connection in started:
            connection.close()
            process.kill()
            process.join()


def _run(folder: Path, services: Services, connection: Connection) -> None:
    asyncio.run(serve(folder, services, connection))
