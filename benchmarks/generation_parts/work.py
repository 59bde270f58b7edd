"""The work that every side does: which prompts, how many samples, how they are sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Lengths = Literal["fixed", "mixed"]
Side = Literal["antiphon", "generate", "continuous"]

SAMPLES = 4
"""Completions of each prompt, as many as `num_generations` is by default."""
TEMPERATURE, TOP_K, TOP_P = 0.6, 50, 0.6
NEW_TOKENS: dict[Lengths, int] = {"fixed": 64, "mixed": 128}

_TASKS = (
    "Name one use of {}.",
    "What is {}?",
    "Tell a story of two sentences about {}.",
    "In one short sentence, say why people like {}, and do not repeat the question.",
)
_TOPICS = (
    "a bicycle",
    "the sea",
    "rain in a large city at night",
    "bread",
    "an old newspaper that was left on a bench in the park",
    "chess",
    "the moon",
    "a garden with apple trees",
)


@dataclass(frozen=True, slots=True)
class Work:
    """One measurement: `size` sequences, end tokens ignored (fixed) or honoured (mixed)."""

    size: int
    lengths: Lengths

    @property
    def prompts(self) -> list[str]:
        """Distinct prompts of several lengths, `SAMPLES` completions each."""
        texts = [task.format(topic) for topic in _TOPICS for task in _TASKS]
        return texts[: self.size // SAMPLES]

    @property
    def new_tokens(self) -> int:
        """Most tokens of a completion."""
        return NEW_TOKENS[self.lengths]
