"""What services do under load: bursts of calls, callers that do not read, connections that drop.

At each level every call has to be served or refused with RESOURCE_EXHAUSTED. Health is asked all
the while, from another process and at the server's own port. It stays live because a server's event
loop does nothing but talk: a user's function has the main thread, an engine a thread of its own,
and of a call that is refused no more is read than its headers.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load_parts import calls
from benchmarks.load_parts.calls import Outcome, percentile
from benchmarks.load_parts.connections import drop, files_open
from benchmarks.load_parts.health import HealthWatch
from benchmarks.load_parts.services import MAX_REQUESTS, STALL_SECONDS, Service, Services
from benchmarks.processes import WatchedMemory, memory
from benchmarks.results import Row, require, write

HEALTH_SECONDS = 0.1
GROWTH_BYTES = 10 * MAX_REQUESTS
"""How much a service may grow: requests as bytes, as messages and as what is made of them, in
gRPC's buffers, and until the collector has seen that they are gone."""
CLEAN = {"OK", "RESOURCE_EXHAUSTED"}
CONNECTIONS = 10_000
PER_SECOND = 2000.0
"""Connections opened; then as many at once as one process can open."""
LONG = 3 << 20


@dataclass(frozen=True)
class Level:
    """What one level found."""

    name: str
    outcome: Outcome
    health: list[float]
    grown: int

    def told(self) -> dict[str, Any]:
        """For the row: milliseconds, counts, megabytes."""
        return {
            "calls": len(self.outcome.seconds),
            "outcomes": self.outcome.codes,
            "p50_ms": round(1000 * self.outcome.p50, 1),
            "p99_ms": round(1000 * self.outcome.p99, 1),
            "health_checks": len(self.health),
            "health_p50_ms": round(1000 * percentile(self.health, 0.5), 1),
            "health_p99_ms": round(1000 * percentile(self.health, 0.99), 1),
            "health_max_ms": round(1000 * max(self.health), 1),
            "memory_grown_mb": round(self.grown / 1e6, 1),
        }


def level(name: str, service: Service, load: Callable[[str], Outcome]) -> Level:
    """Load a service while its health and memory are watched."""
    before = memory(service.pid)
    with HealthWatch(service.address) as health, WatchedMemory(service.pid) as watched:
        outcome = load(service.address)
        time.sleep(1)
    found = Level(name, outcome, health.seconds, max(watched.peak() - before, 0))
    unclean = set(outcome.codes) - CLEAN
    require(not unclean, f"{name}: calls ended with {unclean}")
    told = found.told()
    print(f"{name}: {', '.join(f'{key} {value}' for key, value in told.items())}", flush=True)
    return found


def main() -> None:
    """Load the services level by level and write the row."""
    reader = ""

    def stop_reading(address: str) -> Outcome:
        nonlocal reader
        reader, outcome = asyncio.run(calls.stop_reading(address, 16))
        return outcome

    with tempfile.TemporaryDirectory() as folder, Services(Path(folder)) as services:
        reward, generation = services.reward, services.generation
        # What is made once, threads and buffers, is there before anything is measured.
        asyncio.run(calls.score(reward.address, 50))
        asyncio.run(calls.generate(generation.address, 4))
        levels = [
            level(f"{count} Score", reward, lambda a, n=count: asyncio.run(calls.score(a, n)))
            for count in (100, 1000, 4000)
        ]
        levels.append(
            level("200 Score of 3 MB", reward, lambda a: asyncio.run(calls.score(a, 200, LONG)))
        )
        levels += [
            level(
                f"{count} Generate",
                generation,
                lambda a, n=count: asyncio.run(calls.generate(a, n)),
            )
            for count in (16, 256)
        ]
        levels.append(level("16 Generate beside one who does not read", generation, stop_reading))
        files = files_open(reward.pid)
        levels.append(
            level(f"{CONNECTIONS} connections", reward, lambda a: drop(a, CONNECTIONS, PER_SECOND))
        )
        levels.append(
            level(f"{CONNECTIONS} at once", reward, lambda a: drop(a, CONNECTIONS, math.inf))
        )
        left = files_open(reward.pid) - files
        levels.append(
            level("100 Score afterwards", reward, lambda a: asyncio.run(calls.score(a, 100)))
        )
    require(reader == "RESOURCE_EXHAUSTED", f"who did not read was told {reader}")
    after = levels[-1].outcome.codes
    require(after == {"OK": 100}, f"100 calls after the load ended with {after}")
    report(levels, reader, left)


def report(levels: list[Level], reader: str, left: int) -> None:
    """Write the row."""
    worst = max(max(found.health) for found in levels)
    grown = max(found.grown for found in levels)
    holds = worst <= HEALTH_SECONDS and grown <= GROWTH_BYTES and left <= 10
    write(
        Row(
            name="load",
            value=1000 * worst,
            unit="ms",
            wanted=f"at most {1000 * HEALTH_SECONDS:g}, the slowest health check of all "
            f"levels; a service grows by at most {GROWTH_BYTES / 1e6:.0f} MB and keeps no "
            "connection",
            holds=holds,
            baseline="calls ended with OK or RESOURCE_EXHAUSTED only; the event loop only talks, "
            "so health is live while functions and engines work",
            details={
                "levels": {found.name: found.told() for found in levels},
                "connections_per_second": PER_SECOND,
                "who_did_not_read_was_told": reader,
                "after_seconds": STALL_SECONDS,
                "most_request_bytes": MAX_REQUESTS,
                "files_left_by_connections": left,
            },
        )
    )


if __name__ == "__main__":
    main()
