"""From trees to optimiser steps: each agent's buffer, and its policy on a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from antiphon.learner.buffer import RolloutBuffer
from antiphon.learner.concurrency import task_group
from antiphon.learner.samples import TrainingSample

if TYPE_CHECKING:
    from antiphon.learner.policy import StepStats

T = TypeVar("T")


class Steps(Protocol):
    """What takes an agent's optimiser steps, as `antiphon.learner.policy.Policy`."""

    def step(self, minibatch: Sequence[TrainingSample]) -> StepStats:
        """One optimiser step from a minibatch of nodes."""
        ...


@dataclass(frozen=True)
class AgentUpdate:
    """What one agent's drains came to: the minibatches in order, each with its step's figures."""

    agent: int
    steps: list[tuple[list[TrainingSample], StepStats]] = field(default_factory=list)

    @property
    def stepped(self) -> bool:
        """Whether the weights took an optimiser step."""
        return any(stats.stepped for _, stats in self.steps)


class Updates:
    """Fills the agents' buffers and drains them into their policies, agents side by side.

    Args:
        buffers: One per agent, agent 0 first.
        policies: One per agent.
        threads: Cores for all updates together; each agent's torch threads are its share.
    """

    def __init__(
        self, buffers: Sequence[RolloutBuffer], policies: Sequence[Steps], *, threads: int
    ) -> None:
        self._buffers = buffers
        self._policies = policies
        side_by_side = min(len(policies), max(1, threads))
        self._pool = ThreadPoolExecutor(
            max_workers=side_by_side,
            thread_name_prefix="antiphon-update",
            initializer=torch.set_num_threads,
            initargs=(max(1, threads // side_by_side),),
        )

    async def run(
        self, samples: Sequence[Sequence[TrainingSample]], *, end_of_epoch: bool
    ) -> list[AgentUpdate]:
        """Let each agent's nodes enter its buffer, and take the steps of the drains that follow.

        Args:
            samples: The nodes of a rollout batch by agent, task after task in pre-order [N][nodes].
            end_of_epoch: Whether what is left in the buffers drains too.
        """
        loop = asyncio.get_running_loop()

        async def update(agent: int) -> AgentUpdate:
            return await loop.run_in_executor(
                self._pool, self._update, agent, samples[agent], end_of_epoch
            )

        async with task_group() as group:
            tasks = [group.create_task(update(agent)) for agent in range(len(self._policies))]
        return [task.result() for task in tasks]

    async def each(self, function: Callable[[int], T]) -> list[T]:
        """Run a function of a policy's number for every policy, on the threads of the updates."""
        loop = asyncio.get_running_loop()
        calls = [loop.run_in_executor(self._pool, function, p) for p in range(len(self._policies))]
        return list(await asyncio.gather(*calls))

    def close(self) -> None:
        """Wait for the update under way and end the threads."""
        self._pool.shutdown(wait=True)

    def _update(
        self, agent: int, samples: Sequence[TrainingSample], end_of_epoch: bool
    ) -> AgentUpdate:
        buffer, update = self._buffers[agent], AgentUpdate(agent)
        for sample in samples:
            buffer.add(sample)
            if buffer.ready:
                self._drain(update)
        if end_of_epoch:
            self._drain(update)
        return update

    def _drain(self, update: AgentUpdate) -> None:
        for minibatch in self._buffers[update.agent].drain():
            update.steps.append((minibatch, self._policies[update.agent].step(minibatch)))
