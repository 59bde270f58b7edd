"""One batch of prompts over the replicas of an agent: what is left of it, and who keeps pace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from antiphon.clients.types import Completion, PromptSamples
from antiphon.learner.weights.replicas import Replica

BEHIND = 2.0
"""A replica is behind once it has taken so many times as long as the others would have needed."""
PATIENCE = 1.0
"""Seconds on top of that, which short batches need."""

Part = tuple[int, tuple[int, ...]]
"""A prompt's place in the batch, and which of its samples are asked for."""


class Work:
    """A batch while its completions arrive; each is handed to `deliver` once."""

    def __init__(
        self, prompts: Sequence[PromptSamples], deliver: Callable[[Completion], None]
    ) -> None:
        self._prompts = prompts
        self._deliver = deliver
        self._left = {place: set(range(len(p.seeds))) for place, p in enumerate(prompts)}

    @property
    def left(self) -> list[Part]:
        """What has not been delivered, in order."""
        return [(place, tuple(sorted(samples))) for place, samples in self._left.items() if samples]

    def prompts(self, parts: Iterable[Part]) -> tuple[PromptSamples, ...]:
        """What to ask for."""
        return tuple(
            PromptSamples(
                self._prompts[place].prompt,
                tuple(self._prompts[place].seeds[sample] for sample in samples),
            )
            for place, samples in parts
        )

    def take(self, completion: Completion, place: int, sample: int) -> None:
        """Deliver a completion, unless another replica was faster."""
        if sample in self._left[place]:
            self._left[place].remove(sample)
            self._deliver(replace(completion, prompt_index=place, sample_index=sample))

    def missing(self, parts: Iterable[Part]) -> list[tuple[int, int]]:
        """What of these parts has not been delivered, as (prompt, sample)."""
        return [(place, s) for place, samples in parts for s in samples if s in self._left[place]]


@dataclass(eq=False)
class Share:
    """What one replica was asked for; `seconds` it took, None while it is under way.

    `task` gives the tokens of the longest completion. A share on trial is asked of a replica that
    fell behind, beside the one that is relied on. One that is `lost` ended in an error.
    """

    replica: Replica
    parts: tuple[Part, ...]
    task: asyncio.Task[int]
    trial: bool = False
    lost: bool = False
    seconds: float | None = None
    began: float = field(default_factory=time.monotonic)

    @property
    def relied_on(self) -> bool:
        """Whether it is under way and expected to end in time."""
        return self.seconds is None and not self.trial and self.replica.keeps_pace


def seconds_until_behind(asked: Sequence[Share], max_new_tokens: int) -> float | None:
    """Seconds until the shares under way are behind; None where that cannot be said yet.

    No completion is longer than `max_new_tokens`. So at the pace (seconds per token of the longest
    completion, median) of those that have ended, every share ends after `max_new_tokens` times it.
    At least half of those that are relied on must have ended.
    """
    under_way = [share for share in asked if share.relied_on]
    ended = [s for s in asked if s.seconds is not None and not s.trial and not s.lost]
    if not under_way or len(ended) < len(under_way):
        return None
    pace = median((share.seconds or 0.0) / share.task.result() for share in ended)
    longest = BEHIND * pace * max_new_tokens + PATIENCE
    return max(0.0, min(share.began for share in under_way) + longest - time.monotonic())


def shares(count: int, replicas: int) -> list[range]:
    """Contiguous shares of `count` prompts, one per replica, the first ones larger by one."""
    small, larger = divmod(count, replicas)
    ranges, start = [], 0
    for replica in range(replicas):
        stop = start + small + (1 if replica < larger else 0)
        ranges.append(range(start, stop))
        start = stop
    return ranges
