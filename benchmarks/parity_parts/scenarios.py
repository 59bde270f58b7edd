"""What both sides are given where CoMLRL goes wrong. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.parity_parts.cases import Case
from benchmarks.parity_parts.script import EOS

Scenario = Mapping[str, Any]
Group = tuple[tuple[tuple[str, ...], ...], tuple[float, ...]]

SAME_LENGTH: Group = ((("w1", EOS), ("w2", EOS)), (1.0, 0.0))
TWO_LENGTHS: Group = ((("w1", EOS), ("w2", "w3", "w4", EOS)), (1.0, 0.0))
EQUAL: Group = (SAME_LENGTH[0], (0.5, 0.5))
MISSING: Group = (
    (("w1", "w9", EOS), ("w2", "w9", EOS), ("w3", "w9", EOS), ("w4", "w9", EOS)),
    (1.0, math.nan, 0.5, math.inf),
)
FOUR: Group = (MISSING[0], (1.0, 2.0, 4.0, 5.0))
CROSS_REWARDS = {"s0s0": 1.0, "s0s1": 0.0, "s1s0": 0.5, "s1s1": 0.25}
"""By the two agents' completions."""
TWO_TURNS: Group = (SAME_LENGTH[0], (1.0, 0.5))
"""The answer and the reward of each turn, see `answer_of_turn`."""
TWO_REWARDS = [0.25, 0.75]
"""What a reward function returns for one joint action."""
HALF_A_TRANSITION = [None, "x"]


def answer_of_turn(prompt: str, sample: int) -> tuple[str, ...]:  # noqa: ARG001
    """What agents answer at the turn that a prompt is of, the same in every completion."""
    return TWO_TURNS[0][prompt.count(":")]


def small_case(**changes: Any) -> Case:
    """One agent, one turn, two completions, one step; no normalisation."""
    settings: dict[str, Any] = {
        "num_agents": 1,
        "num_turns": 1,
        "joint_mode": "aligned",
        "num_generations": 2,
        "threshold": None,
        "mode": "mean",
        "normalize": False,
        "tasks": ("t0",),
        "rollout_buffer_size": 1,
    }
    return Case(**{**settings, **changes})


def numbered(
    answers: Sequence[Sequence[str]], rewards: Sequence[float]
) -> Callable[[list[str]], list[float]]:
    """A reward function that knows one agent's answers by their first word."""
    known = {words[0]: value for words, value in zip(answers, rewards, strict=True)}
    return lambda texts: [known[text.split()[0]] if text else 0.0 for text in texts]


def logprob(
    logits: Sequence[float], token: int, *, temperature: float, top_k: int, top_p: float
) -> float:
    """Log-probability of a token after temperature, then top-k, then top-p, in plain Python."""
    likeliest = sorted((-z / temperature, i) for i, z in enumerate(logits))[:top_k]
    masses = [(math.exp(likeliest[0][0] - z), i) for z, i in likeliest]
    total, before, kept = math.fsum(m for m, _ in masses), 0.0, []
    for mass, i in masses:
        if before >= top_p:
            break
        kept.append((mass, i))
        before += mass / total
    probability = {i: mass for mass, i in kept}[token] / math.fsum(m for m, _ in kept)
    return math.log(probability)


def k3(policy: float, reference: float) -> float:
    """A token's reference KL from its log-probabilities."""
    return math.exp(reference - policy) - (reference - policy) - 1
