"""A generation replica: rows join, get a token a step, and leave; new weights wait their turn."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import simpy
from benchmarks.cluster_sim_parts.costs import EngineCosts


@dataclass(eq=False)
class Row:
    """One completion: its node and length, and who is told that it is there.

    `version` is that of the weights it began with.
    """

    node: int
    length: int
    prompt_tokens: int
    deliver: Callable[[Row], None]
    version: int = 0


@dataclass(eq=False)
class Request:
    """Rows that were asked for together: those that wait, and how many have not ended."""

    waiting: deque[Row]
    left: int
    prefilled: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Swap:
    """New weights: their version, and how long they keep the engine from sampling."""

    version: int
    seconds: float
    done: simpy.Event = field(repr=False)


class Replica:
    """One engine with a queue of requests and swaps in order of arrival.

    Args:
        env: The clock.
        costs: What its steps cost.
        factor: How many times slower it is.
        waits: New weights wait for the rows that began before them (`on_swap` `finish`).
    """

    def __init__(
        self, env: simpy.Environment, costs: EngineCosts, factor: float = 1.0, *, waits: bool = True
    ) -> None:
        self._env = env
        self._costs = costs
        self._factor = factor
        self._waits = waits
        self._jobs: deque[Request | Swap] = deque()
        self._active: list[tuple[int, int, Row, Request]] = []
        self._order = count()
        self._position = 0
        self._prompts = 0
        self._began = 0
        self._wake = env.event()
        self.version = 0
        self.busy = 0.0
        self.tokens = 0
        self.outstanding = 0
        """Tokens that may still come of what it was asked; whoever asks counts them."""
        self._may_interrupt = False
        self._process = env.process(self._work())

    def ask(self, rows: Sequence[Row]) -> None:
        """Sample these; each is told as it ends."""
        self._put(Request(deque(rows), len(rows)))

    def swap(self, version: int, seconds: float) -> simpy.Event:
        """Happens when these weights are applied."""
        swap = Swap(version, seconds, self._env.event())
        self._put(swap)
        return swap.done

    def _put(self, job: Request | Swap) -> None:
        self._jobs.append(job)
        if self._may_interrupt:
            self._may_interrupt = False
            self._process.interrupt()
        elif not self._wake.triggered:
            self._wake.succeed()

    def _work(self) -> Generator[simpy.Event, Any, None]:
        while True:
            if self._wake.triggered:
                self._wake = self._env.event()
            if (swap := self._next_swap()) is not None:
                yield from self._take(swap)
                continue
            if prompts := self._join():
                yield from self._prefill(prompts)
            if not self._active:
                yield self._wake
                continue
            yield from self._decode()

    def _next_swap(self) -> Swap | None:
        """The swap whose turn it is: the first job, or, where swaps do not wait, the first swap."""
        if self._waits:
            first = self._jobs[0] if self._jobs else None
            return first if isinstance(first, Swap) and not self._active else None
        return next((job for job in self._jobs if isinstance(job, Swap)), None)

    def _take(self, swap: Swap) -> Generator[simpy.Event, Any, None]:
        self._jobs.remove(swap)
        self.busy += swap.seconds
        yield self._env.timeout(swap.seconds)
        self.version = swap.version
        swap.done.succeed()

    def _join(self) -> int:
        """Rows take free places, in order of arrival; tokens of prompts that are new with them."""
        free = self._costs.places - len(self._active)
        if free < max(1.0, self._costs.join_share * self._costs.places):
            return 0
        prompts = 0
        for job in self._jobs:
            if isinstance(job, Swap):
                break  # What was asked for after it is sampled under it.
            while job.waiting and len(self._active) < self._costs.places:
                row = job.waiting.popleft()
                row.version = self.version
                if row.node not in job.prefilled:
                    job.prefilled.add(row.node)
                    prompts += row.prompt_tokens
                self._prompts += row.prompt_tokens
                self._began += self._position
                end = self._position + row.length
                heapq.heappush(self._active, (end, next(self._order), row, job))
            if self._costs.exclusive or job.waiting:
                break
        return prompts

    def _prefill(self, prompts: int) -> Generator[simpy.Event, Any, None]:
        seconds = prompts * self._costs.prompt_seconds * self._factor
        self.busy += seconds
        if seconds:
            yield self._env.timeout(seconds)

    def _decode(self) -> Generator[simpy.Event, Any, None]:
        """Steps until the first row ends, or until something comes that need not wait for that."""
        steps, rows = self._active[0][0] - self._position, len(self._active)
        context = self._prompts + rows * (self._position + steps / 2) - self._began
        each = self._costs.step(rows, context) * self._factor
        began = self._env.now
        room = len(self._active) < self._costs.places and not self._costs.exclusive
        self._may_interrupt = room or not self._waits
        try:
            yield self._env.timeout(steps * each)
        except simpy.Interrupt:
            steps = min(steps, math.ceil((self._env.now - began) / each - 1e-9))
            yield self._env.timeout(max(0.0, began + steps * each - self._env.now))
        self._may_interrupt = False
        self.busy += steps * each
        self.tokens += steps * rows
        self._position += steps
        self._end_rows()

    def _end_rows(self) -> None:
        while self._active and self._active[0][0] <= self._position:
            end, _, row, request = heapq.heappop(self._active)
            self._prompts -= row.prompt_tokens
            self._began -= end - row.length
            request.left -= 1
            if request.left == 0:
                self._jobs.remove(request)
            row.deliver(row)
