"""What work waits for: cores that take it in order of arrival, and links that flows share."""

from __future__ import annotations

import heapq
import math
from collections.abc import Generator
from typing import Any

import simpy


class Cores:
    """Cores that take pieces of work in order of arrival."""

    def __init__(self, env: simpy.Environment, count: float) -> None:
        self._env = env
        self._free = None if math.isinf(count) else [0.0] * int(count)

    def work(self, seconds: float) -> simpy.Event:
        """Happens when a core has done this."""
        return self._env.timeout(self.done_at(seconds) - self._env.now)

    def done_at(self, seconds: float, earliest: float = 0.0) -> float:
        """When a core has done this, which it does not begin before `earliest`."""
        earliest = max(earliest, self._env.now)
        if self._free is None:
            return earliest + seconds
        # Of those that are free by then the last, as the others may do something before that.
        by_then = [free for free in self._free if free <= earliest]
        core = self._free.index(max(by_then) if by_then else min(self._free))
        self._free[core] = max(earliest, self._free[core]) + seconds
        return self._free[core]


class Thread:
    """A thread: its pieces of work come one after another, on any core. `busy` adds them up."""

    def __init__(self, env: simpy.Environment, cores: Cores) -> None:
        self._env = env
        self._cores = cores
        self._free = 0.0
        self.busy = 0.0

    def work(self, seconds: float) -> simpy.Event:
        """Happens when this is done."""
        self.busy += seconds
        self._free = self._cores.done_at(seconds, self._free)
        return self._env.timeout(self._free - self._env.now)


class Link:
    """A link whose flows share it evenly, none above `most` bytes/s. `busy` is when it has any.

    All flows have had the same bytes since they began, or would have: `_given` counts those of a
    flow that was always there. So a flow ends when `_given` has grown by its bytes.
    """

    def __init__(self, env: simpy.Environment, rate: float, most: float = math.inf) -> None:
        self._env = env
        self._rate = rate
        self._most = most
        self._given = 0.0
        self._since = 0.0
        self._ends: list[tuple[float, int, simpy.Event]] = []
        self._count = 0
        self._changed = env.event()
        self.busy = 0.0
        self.nbytes = 0.0
        env.process(self._serve())

    def send(self, nbytes: float) -> simpy.Event:
        """Happens when these bytes are over."""
        done = self._env.event()
        self.nbytes += nbytes
        if nbytes <= 0 or math.isinf(self._each(1)):
            return done.succeed()
        self._settle()
        self._count += 1
        heapq.heappush(self._ends, (self._given + nbytes, self._count, done))
        if not self._changed.triggered:
            self._changed.succeed()
        return done

    def _each(self, flows: int) -> float:
        return min(self._most, self._rate / flows)

    def _settle(self) -> None:
        passed, self._since = self._env.now - self._since, self._env.now
        if self._ends:
            self._given += passed * self._each(len(self._ends))
            self.busy += passed

    def _serve(self) -> Generator[simpy.Event, Any, None]:
        while True:
            if self._changed.triggered:
                self._changed = self._env.event()
            if not self._ends:
                yield self._changed
                continue
            left = (self._ends[0][0] - self._given) / self._each(len(self._ends))
            yield self._env.timeout(max(0.0, left)) | self._changed
            self._settle()
            # What ends within the clock's resolution ends now: the clock would not move for it.
            blink = 4 * math.ulp(self._env.now) * self._each(len(self._ends))
            close = self._given * (1 + 1e-12) + 1e-9 + blink
            while self._ends and self._ends[0][0] <= close:
                heapq.heappop(self._ends)[2].succeed()
