"""The task of the examples: the second agent answers two to three times as long as the first."""

from __future__ import annotations

import math
from typing import Any

SHORTEST, LONGEST = 2.0, 3.0
"""The goal: length of the second answer / length of the first, both ends included."""


def length_ratio(first: str, second: str) -> float:
    """Characters of `second` per character of `first`; an empty `first` counts as one character."""
    return len(second) / max(len(first), 1)


def length_ratio_reward(first: list[str], second: list[str]) -> list[float]:
    """Score pairs of answers: exp(-distance of their ratio from the goal), 1 inside it."""
    rewards = []
    for a, b in zip(first, second, strict=True):
        ratio = length_ratio(a, b)
        distance = max(SHORTEST - ratio, ratio - LONGEST, 0.0)
        rewards.append(math.exp(-distance))
    return rewards


def length_feedback(prompt: str, agent_completions: list[str], **_: Any) -> list[str]:
    """Write each agent's next prompt: the task, its own length, the ratio, the goal."""
    ratio = length_ratio(*agent_completions)
    return [
        f"{prompt}\n"
        f"Your last answer had {len(completion)} characters. The second answer was {ratio:.1f} "
        f"times as long as the first. The goal: {SHORTEST:g} to {LONGEST:g} times as long. "
        "Please improve your answer:"
        for completion in agent_completions
    ]
