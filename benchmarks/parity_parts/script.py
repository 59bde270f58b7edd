"""What both sides are given: the words, what agents answer, what that is worth, what comes next.

Everything follows from texts by a hash, so two programs that never meet get the same. A prompt is

    t0                       the task, at turn 1
    t0 : s1 s0               turn 2, after agent 0's completion 1 and agent 1's completion 0
    t0 : s1 s0 : s2 s2       turn 3

with the agent's word (`a0`) behind it, and a completion begins with its number (`s1`), so a prompt
names its node. Rewards are multiples of 1/8: nothing is rounded before the arithmetic compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

UNK, BOS, EOS, PAD = SPECIALS = ("<unk>", "<s>", "</s>", "<pad>")
SAMPLES = tuple(f"s{g}" for g in range(8))
AGENTS = tuple(f"a{agent}" for agent in range(3))
TASKS = tuple(f"t{task}" for task in range(8))
FILLERS = tuple(f"w{i}" for i in range(104))
# 128 words: 1 / 128 has no rounding error, see StubModel.
WORDS = (*SPECIALS, *SAMPLES, *AGENTS, *TASKS, ":", *FILLERS)
WORD_IDS = {word: i for i, word in enumerate(WORDS)}
REWARD_FACTOR = 0.5


def _numbers(text: str, count: int) -> list[int]:
    return list(hashlib.blake2b(text.encode(), digest_size=count).digest())


def completion(prompt: str, sample: int) -> tuple[str, ...]:
    """The words that an agent answers, the end token last, of 3 to 5."""
    length, *picks = _numbers(f"{prompt}|{sample}", 4)
    fillers = [FILLERS[pick % len(FILLERS)] for pick in picks[: 1 + length % 3]]
    return (SAMPLES[sample], *fillers, EOS)


def even_completion(prompt: str, sample: int) -> tuple[str, ...]:
    """As `completion`, always of 4 words: no row of a group is padded for another's sake."""
    picks = _numbers(f"{prompt}|{sample}", 2)
    return (SAMPLES[sample], *(FILLERS[pick % len(FILLERS)] for pick in picks), EOS)


def reward_of(texts: Sequence[str]) -> float:
    """What a joint action is worth, in [-1, 1]."""
    return (_numbers("|".join(texts), 1)[0] % 17 - 8) / 8


def reward(*completions: list[str]) -> list[float]:
    """A reward function as a user writes it: one list per agent, one joint action each."""
    return [reward_of(texts) for texts in zip(*completions, strict=True)]


def flat_reward(texts: list[str]) -> list[float]:
    """As `reward`, of one agent; whatever it answers to task t1 is worth 0.5."""
    flat = {text_of(even_completion(f"{TASKS[1]} {AGENTS[0]}", sample)) for sample in range(4)}
    return [0.5 if text in flat else reward_of([text]) for text in texts]


def text_of(words: Sequence[str]) -> str:
    """What user functions see of an answer."""
    return " ".join(word for word in words if word not in SPECIALS)


def reward_processor(value: float) -> float:
    return REWARD_FACTOR * value


def transition(
    prompt: str, response_history_per_agent: Sequence[Sequence[str]], num_agents: int, **_: Any
) -> list[str]:
    """The next prompt: the task, and which completions led here."""
    turns = zip(*response_history_per_agent, strict=True)
    path = [f" : {' '.join(text.split()[0] for text in texts)}" for texts in turns]
    return [prompt + "".join(path)] * num_agents


def our_transition(
    prompt: str, response_history_per_agent: Sequence[Sequence[str]], num_agents: int
) -> list[str]:
    """`transition` with the arguments that it needs, and no others."""
    return transition(prompt, response_history_per_agent, num_agents)


def formatters(num_agents: int) -> list[Any]:
    """One per agent, each with the agent's word behind the prompt."""
    return [
        lambda item, agent=agent: f"{item['prompt']} {AGENTS[agent]}" for agent in range(num_agents)
    ]


def label(prompt: str) -> str:
    """The node that an agent's prompt belongs to."""
    return prompt.rsplit(" ", 1)[0]


def child(node: str, samples: Sequence[int]) -> str:
    """The node that follows the joint action of these completions."""
    return f"{node} : {' '.join(SAMPLES[sample] for sample in samples)}"
