"""Each agent's buffer of nodes, and the order in which they become optimiser steps.

Nodes enter in pre-order of the tree, task after task. At `size` nodes the buffer is ready; a drain
gives minibatches of `train_batch_size` nodes: turns ascending, no minibatch mixes turns, each
turn's nodes shuffled by a key of (seed, agent, drain, turn). Dead nodes enter and count.
"""

from __future__ import annotations

import hashlib

from antiphon.clients.types import FieldError
from antiphon.learner.samples import TrainingSample


class RolloutBuffer:
    """The nodes of one agent that wait for their optimiser step.

    Attributes:
        samples: The nodes that wait, in the order in which they entered.
        drains: Drains so far; the number of the next one.
    """

    def __init__(self, agent: int, size: int, train_batch_size: int | None, seed: int) -> None:
        """`train_batch_size` None stands for `size`.

        Raises:
            FieldError: A size is below 1.
        """
        minibatch = size if train_batch_size is None else train_batch_size
        for name, value in (("rollout_buffer_size", size), ("train_batch_size", minibatch)):
            if value < 1:
                raise FieldError(name, value, "1 or more nodes")
        self.agent = agent
        self.size = size
        self.train_batch_size = minibatch
        self.seed = seed
        self.samples: list[TrainingSample] = []
        self.drains = 0

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def ready(self) -> bool:
        """Whether the buffer is due to drain."""
        return len(self.samples) >= self.size

    def add(self, sample: TrainingSample) -> None:
        """Let a node enter.

        Raises:
            FieldError: The sample is another agent's.
        """
        if sample.agent != self.agent:
            raise FieldError("sample.agent", sample.agent, f"{self.agent}, this buffer's agent")
        self.samples.append(sample)

    def drain(self) -> list[list[TrainingSample]]:
        """Empty the buffer into minibatches in order of optimiser step; none where it is empty."""
        if not self.samples:
            return []
        minibatches: list[list[TrainingSample]] = []
        for turn in sorted({sample.turn for sample in self.samples}):
            nodes = self._shuffled(turn, [s for s in self.samples if s.turn == turn])
            minibatches += [
                nodes[start : start + self.train_batch_size]
                for start in range(0, len(nodes), self.train_batch_size)
            ]
        self.samples = []
        self.drains += 1
        return minibatches

    def _shuffled(self, turn: int, nodes: list[TrainingSample]) -> list[TrainingSample]:
        """Nodes in the order of a hash of key and position, the same on every machine."""

        def rank(position: int) -> bytes:
            key = f"{self.seed} {self.agent} {self.drains} {turn} {position}"
            return hashlib.blake2b(key.encode(), digest_size=16).digest()

        return [nodes[position] for position in sorted(range(len(nodes)), key=rank)]
