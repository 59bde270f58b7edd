"""One turn's prompts of an agent as a queue of chunks, and who keeps pace in working it off.

A chunk is a run of whole prompts in tree order, cut once when the turn begins. It is asked for as
it is, whoever is asked and however often: what is computed together stays together. One replica
gets all prompts as one chunk. Several get one each, or as many as it takes for a chunk to fit what
a replica computes at once; so does one that others may join.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from statistics import median

from antiphon.clients.types import Completion, PromptSamples
from antiphon.learner.weights.replicas import Replica

BEHIND = 2.0
"""A replica is behind once it has taken so many times as long as the others would have needed."""
PATIENCE = 1.0
"""Seconds on top of that, which short chunks need."""


def chunk_ranges(
    count: int, samples: int, replicas: Sequence[Replica], *, elastic: bool = False
) -> list[range]:
    """Cut `count` prompts of `samples` completions each into contiguous, nearly equal chunks.

    Their number is a multiple of that of the replicas, where there are as many prompts: the least
    for which a chunk is no more than the smallest replica computes at once. With one replica there
    is one chunk, unless more may join (`elastic`).
    """
    if not replicas or (len(replicas) == 1 and not elastic):
        return [range(count)]
    share = -(-count // len(replicas))
    rows = min(replica.batch_rows for replica in replicas)
    at_once = max(1, rows // max(1, samples)) if rows else share
    chunks = min(count, len(replicas) * -(-share // at_once))
    small, larger = divmod(count, chunks)
    ranges, start = [], 0
    for number in range(chunks):
        stop = start + small + (1 if number < larger else 0)
        ranges.append(range(start, stop))
        start = stop
    return ranges


Part = tuple[int, tuple[int, ...]]
"""A prompt's place in the turn, and which of its samples are asked for."""


@dataclass(eq=False)
class Chunk:
    """Prompts that are asked for together; `left` are the (prompt, sample) not yet delivered.

    `lost` counts the askings that failed since it last delivered something, `deadlines` those of
    them that ended at their deadline.
    """

    prompts: Sequence[PromptSamples]
    places: range
    left: set[tuple[int, int]]
    lost: int = 0
    deadlines: int = 0

    @property
    def done(self) -> bool:
        """Whether all of it is delivered."""
        return not self.left

    def parts(self, *, whole: bool) -> list[Part]:
        """What to ask for: all samples of its prompts, or those that are missing."""
        every = ((place, range(len(self.prompts[place].seeds))) for place in self.places)
        parts = [
            (place, tuple(s for s in samples if whole or (place, s) in self.left))
            for place, samples in every
        ]
        return [(place, samples) for place, samples in parts if samples]

    def asked(self, parts: Iterable[Part]) -> tuple[PromptSamples, ...]:
        """These parts as a request has them."""
        return tuple(
            PromptSamples(
                self.prompts[place].prompt, tuple(self.prompts[place].seeds[s] for s in samples)
            )
            for place, samples in parts
        )


class Purpose(Enum):
    """Why a replica is asked for a chunk.

    WORK is relied on. A TRIAL shows whether a replica that fell behind keeps pace again, with a
    chunk that waits for one that is relied on; what it brings first counts. A PROBE does so where
    none waits, with a part of a chunk that is under way: its answers are dropped, since they were
    not computed together with the rest of the chunk.
    """

    WORK = "work"
    TRIAL = "trial"
    PROBE = "probe"


@dataclass(eq=False)
class Asking:
    """Parts of a chunk that a replica was asked for, and what it may still sample of them.

    Attributes:
        task: Gives the tokens of the longest completion.
        outstanding: Most tokens that are still to come.
        lost: It ended without all answers.
        seconds: It took, None while it is under way.
        began: When the replica could begin with it.
    """

    chunk: Chunk
    parts: Sequence[Part]
    replica: Replica
    purpose: Purpose
    outstanding: int
    task: asyncio.Task[int] = field(init=False)
    lost: bool = False
    seconds: float | None = None
    began: float = field(default_factory=time.monotonic)

    @property
    def relied_on(self) -> bool:
        """Whether it is under way and expected to end in time."""
        return self.seconds is None and self.purpose is Purpose.WORK and self.replica.keeps_pace


class WorkQueue:
    """A turn's chunks: those that wait, in order, and those that replicas were asked for.

    Args:
        prompts: Of the turn, in tree order.
        replicas: Those that it is cut for.
        deliver: Handed each completion once.
        elastic: More replicas may join.
    """

    def __init__(
        self,
        prompts: Sequence[PromptSamples],
        replicas: Sequence[Replica],
        deliver: Callable[[Completion], None],
        *,
        elastic: bool = False,
    ) -> None:
        self._deliver = deliver
        samples = max((len(prompt.seeds) for prompt in prompts), default=1)
        self.chunks = [
            Chunk(prompts, places, {(p, s) for p in places for s in range(len(prompts[p].seeds))})
            for places in chunk_ranges(len(prompts), samples, replicas, elastic=elastic)
        ]
        self._waiting = deque(chunk for chunk in self.chunks if not chunk.done)
        self.askings: list[Asking] = []

    @property
    def done(self) -> bool:
        """Whether everything is delivered."""
        return all(chunk.done for chunk in self.chunks)

    @property
    def waiting(self) -> int:
        """How many chunks nobody who is relied on was asked for."""
        return sum(not chunk.done for chunk in self._waiting)

    @property
    def under_way(self) -> list[Asking]:
        """What replicas were asked for and have not ended."""
        return [asking for asking in self.askings if asking.seconds is None]

    def next(self) -> Chunk:
        """Take the chunk that waits first; `waiting` says that there is one."""
        while (chunk := self._waiting.popleft()).done:
            pass
        return chunk

    def to_try(self) -> tuple[Chunk, Purpose] | None:
        """What to try a replica with: what the others come to last, or else what they are at."""
        asked = {asking.chunk for asking in self.under_way}
        for chunk in reversed(self._waiting):
            if not (chunk.done or chunk in asked):
                return chunk, Purpose.TRIAL
        at_work = [asking.chunk for asking in self.under_way if asking.relied_on]
        return (at_work[0], Purpose.PROBE) if at_work else None

    def put_back(self, chunk: Chunk) -> None:
        """Let a chunk wait before all others, unless somebody who is relied on has it."""
        relied_on = any(a.chunk is chunk and a.relied_on for a in self.askings)
        if not (chunk.done or relied_on or chunk in self._waiting):
            self._waiting.appendleft(chunk)

    def take(self, completion: Completion, asking: Asking, place: int, sample: int) -> bool:
        """Deliver a completion; False where another replica was faster, or it does not count."""
        chunk = asking.chunk
        if asking.purpose is Purpose.PROBE or (place, sample) not in chunk.left:
            return False
        chunk.left.remove((place, sample))
        chunk.lost = chunk.deadlines = 0
        self._deliver(replace(completion, prompt_index=place, sample_index=sample))
        return True

    def ended(self, asking: Asking) -> None:
        """Note that an asking has ended: its replica can begin with the next one."""
        now = time.monotonic()
        asking.seconds = now - asking.began
        for other in self.under_way:
            if other.replica is asking.replica:
                other.began = now

    def keeps_pace(self, asking: Asking, max_new_tokens: int) -> bool:
        """Whether an asking that has ended was as quick as what is relied on must be."""
        limit = self._limit(max_new_tokens)
        return limit is None or (asking.seconds or 0.0) <= limit

    def seconds_until_behind(self, max_new_tokens: int) -> float | None:
        """Seconds until somebody is behind; None where that cannot be said yet.

        No completion is longer than `max_new_tokens`. So at the pace (seconds per token of the
        longest completion, median) of those that have ended, every asking ends after
        `max_new_tokens` times it. As many must have ended as are under way.
        """
        begun, limit = self._begun(), self._limit(max_new_tokens)
        if not begun or limit is None or len(self._ended) < len(begun):
            return None
        return max(0.0, min(begun.values()) + limit - time.monotonic())

    def behind(self, max_new_tokens: int) -> list[Replica]:
        """The replicas that are relied on and take too long."""
        limit, now = self._limit(max_new_tokens), time.monotonic()
        if limit is None:
            return []
        return [replica for replica, began in self._begun().items() if now >= began + limit]

    def _begun(self) -> dict[Replica, float]:
        """When each replica that is relied on began with what it is at."""
        begun: dict[Replica, float] = {}
        for asking in self.askings:
            if asking.relied_on:
                begun.setdefault(asking.replica, asking.began)
        return begun

    @property
    def _ended(self) -> list[Asking]:
        return [
            asking
            for asking in self.askings
            if asking.seconds is not None and asking.purpose is Purpose.WORK and not asking.lost
        ]

    def _limit(self, max_new_tokens: int) -> float | None:
        """Seconds that an asking may take; None before any has ended."""
        ended = self._ended
        if not ended:
            return None
        pace = median((asking.seconds or 0.0) / asking.task.result() for asking in ended)
        return BEHIND * pace * max_new_tokens + PATIENCE
