"""Each agent's buffer of nodes, and the order in which they become optimiser steps.

Nodes enter in pre-order of the tree, task after task. At `size` nodes the buffer is ready; a drain
gives minibatches of `train_batch_size` nodes: turns ascending, no minibatch mixes turns, each
turn's nodes shuffled by a key of (seed, agent, drain, turn). Dead nodes enter and count.

Agents that share a policy share a buffer. There an entry is a node of one agent, so a node enters
as many times as it has such agents: node after node in pre-order, agents ascending within a node.
The buffer goes by its first agent's number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from antiphon.clients.types import FieldError
from antiphon.learner.arithmetic.samples import TrainedCompletion, TrainingSample


class RolloutBuffer:
    """The nodes of one agent that wait for their optimiser step.

    Attributes:
        samples: The nodes that wait, in the order in which they entered.
        drains: Drains so far; the number of the next one.
    """

    def __init__(
        self,
        agent: int,
        size: int,
        train_batch_size: int | None,
        seed: int,
        *,
        agents: Collection[int] = (),
    ) -> None:
        """`train_batch_size` None stands for `size`; `agents` are those who share the buffer.

        Raises:
            FieldError: A size is below 1.
        """
        minibatch = size if train_batch_size is None else train_batch_size
        for name, value in (("rollout_buffer_size", size), ("train_batch_size", minibatch)):
            if value < 1:
                raise FieldError(name, value, "1 or more nodes")
        self.agent = agent
        self.agents = frozenset(agents) or frozenset((agent,))
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
        if sample.agent not in self.agents:
            whose = " or ".join(map(str, sorted(self.agents)))
            raise FieldError("sample.agent", sample.agent, f"{whose}, this buffer's agent")
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

    def state_dict(self) -> dict[str, Any]:
        """The nodes that wait and the number of the next drain, as plain values."""
        return {"drains": self.drains, "samples": [asdict(sample) for sample in self.samples]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.drains = int(state["drains"])
        self.samples = [_sample(fields) for fields in state["samples"]]

    def _shuffled(self, turn: int, nodes: list[TrainingSample]) -> list[TrainingSample]:
        """Nodes in the order of a hash of key and position, the same on every machine."""

        def rank(position: int) -> bytes:
            key = f"{self.seed} {self.agent} {self.drains} {turn} {position}"
            return hashlib.blake2b(key.encode(), digest_size=16).digest()

        return [nodes[position] for position in sorted(range(len(nodes)), key=rank)]


def _sample(fields: Mapping[str, Any]) -> TrainingSample:
    completions = tuple(TrainedCompletion(**_tuples(c)) for c in fields["completions"])
    return TrainingSample(**{**_tuples(fields), "completions": completions})


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {n: tuple(value) if isinstance(value, list) else value for n, value in fields.items()}
