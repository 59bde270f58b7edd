"""From trees to optimiser steps: each policy's buffer, and its steps on a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from antiphon.clients.waiting import progressed, waiting_for
from antiphon.learner.arithmetic.buffer import RolloutBuffer
from antiphon.learner.arithmetic.samples import TrainingSample
from antiphon.learner.concurrency import task_group
from antiphon.services.common.memory import give_back_freed_memory

if TYPE_CHECKING:
    from antiphon.learner.policy.policy import StepStats

T = TypeVar("T")


class Steps(Protocol):
    """What takes an agent's optimiser steps, as `antiphon.learner.policy.policy.Policy`."""

    @property
    def optimizer_steps(self) -> int:
        """Optimiser steps so far."""
        ...

    def step(self, *minibatches: Sequence[TrainingSample]) -> StepStats:
        """One optimiser step from minibatches of nodes."""
        ...


@dataclass(frozen=True)
class AgentUpdate:
    """What one policy's drains came to: the nodes of each step in order, with its figures.

    `agent` is the agent that the policy plays, the first of several; `published` the version of its
    weights that the drains began with, None where it is not known.
    """

    agent: int
    steps: list[tuple[list[TrainingSample], StepStats]] = field(default_factory=list)
    published: int | None = None

    @property
    def stepped(self) -> bool:
        """Whether the weights took an optimiser step."""
        return any(stats.stepped for _, stats in self.steps)


class Updates:
    """Fills the policies' buffers and drains them, policies side by side.

    Args:
        buffers: One per policy.
        policies: As many.
        at_once: Policies that are updated at the same time.
        threads: Of torch, for each of these.
        accumulated: Minibatches per optimiser step: those of a drain in order, so many at a time;
            the last ones of a drain may be fewer.
        max_steps: Optimiser steps after which a policy takes no more; None sets no limit. What
            would have been stepped on is dropped.
    """

    def __init__(
        self,
        buffers: Sequence[RolloutBuffer],
        policies: Sequence[Steps],
        *,
        at_once: int,
        threads: int,
        accumulated: int = 1,
        max_steps: int | None = None,
    ) -> None:
        self._buffers = buffers
        self._policies = policies
        self._accumulated = accumulated
        self._max_steps = max_steps
        self._pool = ThreadPoolExecutor(
            max_workers=at_once,
            thread_name_prefix="antiphon-update",
            initializer=torch.set_num_threads,
            initargs=(threads,),
        )

    async def run(
        self, samples: Sequence[Sequence[TrainingSample]], *, end_of_epoch: bool
    ) -> list[AgentUpdate]:
        """Let each policy's nodes enter its buffer, and take the steps of the drains that follow.

        Args:
            samples: The nodes of a rollout batch by policy, in the order in which they enter.
            end_of_epoch: Whether what is left in the buffers drains too.
        """
        loop = asyncio.get_running_loop()

        async def update(policy: int) -> AgentUpdate:
            with waiting_for(f"the update of agent {self._buffers[policy].agent}"):
                return await loop.run_in_executor(
                    self._pool, self._update, policy, samples[policy], end_of_epoch
                )

        async with task_group() as group:
            tasks = [group.create_task(update(policy)) for policy in range(len(self._policies))]
        updates = [task.result() for task in tasks]
        if any(update.stepped for update in updates):
            await loop.run_in_executor(self._pool, give_back_freed_memory)
        return updates

    async def each(self, function: Callable[[int], T]) -> list[T]:
        """Run a function of a policy's number for every policy, on the threads of the updates."""
        loop = asyncio.get_running_loop()
        calls = [loop.run_in_executor(self._pool, function, p) for p in range(len(self._policies))]
        return list(await asyncio.gather(*calls))

    def close(self) -> None:
        """Wait for the update under way and end the threads."""
        self._pool.shutdown(wait=True)

    def _update(
        self, policy: int, samples: Sequence[TrainingSample], end_of_epoch: bool
    ) -> AgentUpdate:
        buffer = self._buffers[policy]
        update = AgentUpdate(buffer.agent)
        for sample in samples:
            buffer.add(sample)
            if buffer.ready:
                self._drain(policy, update)
        if end_of_epoch:
            self._drain(policy, update)
        return update

    def _drain(self, policy: int, update: AgentUpdate) -> None:
        steps, minibatches = self._policies[policy], self._buffers[policy].drain()
        for start in range(0, len(minibatches), self._accumulated):
            if self._max_steps is not None and steps.optimizer_steps >= self._max_steps:
                return
            group = minibatches[start : start + self._accumulated]
            nodes = [node for minibatch in group for node in minibatch]
            update.steps.append((nodes, steps.step(*group)))
            progressed()
