"""The job of both sides: two agents, a tree of answers, every branch to its last turn.

Imported on both sides; needs nothing but Python.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from examples.length_ratio import length_ratio_reward

NUM_AGENTS = 2
TEXTS = (
    "Describe a city in the clouds:",
    "Invent a new holiday and explain it:",
    "Write a bedtime story for a dragon:",
    "Design a playground on Mars:",
)


@dataclass(frozen=True)
class Job:
    """One epoch is one period: `prompts` are rolled out, then trained on.

    Attributes:
        prompts: Of an epoch; several are sampled together before the update.
        num_turns: T.
        num_generations: G.
        max_new_tokens: Tokens of every completion; none ends before.
        periods: Whole ones to measure.
    """

    prompts: int = 1
    num_turns: int = 2
    num_generations: int = 4
    max_new_tokens: int = 64
    periods: int = 1

    @property
    def nodes(self) -> int:
        """Nodes of a prompt's tree."""
        return sum(self.num_generations**turn for turn in range(self.num_turns))

    @property
    def joint_actions(self) -> int:
        """Joint actions of a period."""
        return self.prompts * self.nodes * self.num_generations

    @property
    def steps(self) -> int:
        """Optimiser steps of an agent in a period: two nodes of one turn each, as they drain."""
        if self.prompts > 1:
            of_turn = (self.prompts * self.num_generations**turn for turn in range(self.num_turns))
            return sum(-(-nodes // 2) for nodes in of_turn)
        turns = list(_turns(1, self))
        return sum(len(set(turns[at : at + 2])) for at in range(0, len(turns), 2))

    @property
    def tokens(self) -> int:
        """Tokens that all agents sample in a period."""
        return self.joint_actions * NUM_AGENTS * self.max_new_tokens

    def options(self) -> dict[str, Any]:
        """What both `MAGRPOConfig`s are told; the rest stays at its default, which is the same.

        Several prompts wait in the buffer until all are there; a step takes two nodes as ever.
        """
        return {
            "num_train_epochs": self.periods + 1,
            "num_agents": NUM_AGENTS,
            "num_generations": self.num_generations,
            "max_new_tokens": self.max_new_tokens,
            "num_turns": self.num_turns,
            "early_termination_threshold": None,
            "external_prompt_passthrough": True,
            "eval_interval": 0,
            "rollout_buffer_size": 2 if self.prompts == 1 else self.prompts * self.nodes,
            "train_batch_size": 2,
        }

    def rows(self) -> list[dict[str, str]]:
        """The dataset."""
        return [{"prompt": text} for text in TEXTS[: self.prompts]]


def _turns(turn: int, job: Job) -> Sequence[int]:
    """The turn of each node of a tree below `turn`, in the order in which they are trained on."""
    if turn > job.num_turns:
        return []
    return [turn, *(t for _ in range(job.num_generations) for t in _turns(turn + 1, job))]


def reward_function(told: Callable[[], None]) -> Callable[..., list[float]]:
    """The reward of the examples, and a little of each text: no two are equal, no group is dead."""

    def reward(first: list[str], second: list[str]) -> list[float]:
        told()
        texts = ("\n".join(pair).encode() for pair in zip(first, second, strict=True))
        noise = (zlib.crc32(text) / 2**32 for text in texts)
        return [
            value + 0.01 * some
            for value, some in zip(length_ratio_reward(first, second), noise, strict=True)
        ]

    return reward
