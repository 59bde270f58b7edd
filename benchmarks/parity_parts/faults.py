"""Where CoMLRL 1.4.3 goes wrong: what is given, and the right answer worked out by hand.

Standard library only. The letter and number is the row's in the list of failures that this
project keeps; A is the advantage, n the number of completions of a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.parity_parts import script
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


def _normalised(mode: str) -> float:
    """The first advantage of returns 1, 2, 4, 5: mean 3, standard deviation sqrt(10 / 4)."""
    spread, size = math.sqrt(10 / 4), math.sqrt((1 + 4 + 16 + 25) / 4)
    return {"rloo": (4 * 1 - 12) / 3 / spread, "max": (1 - 5) / spread, "raw": 1 / size}[mode]


@dataclass(frozen=True)
class Fault:
    """A number or word that CoMLRL has wrong.

    `right` None is computed while the benchmark runs, by plain Python from a model's logits.
    """

    name: str
    row: str
    what: str
    how: str
    right: float | str | None
    tolerance: float = 1e-6


_FIRST_REWARD = script.REWARD_FACTOR * script.reward_of(
    (" ".join(script.completion("t0 a0", 0)[:-1]),)
)

FAULTS = (
    Fault(
        "end_token",
        "L1",
        "weight of the end token's log-probability, completion `w1 </s>` with A = 0.5, n = 2",
        "A / n = 0.5 / 2",
        0.25,
    ),
    Fault(
        "after_the_end",
        "L1",
        "weight of the padding behind it, beside a completion of 4 tokens",
        "nothing after the end token counts",
        0.0,
    ),
    Fault(
        "pad_is_end",
        "L2",
        "the same where the pad token is the end token: weight of all end tokens of `w1 </s>`",
        "it ends once: A / n = 0.5 / 2",
        0.25,
    ),
    Fault(
        "kl_of_end",
        "L2",
        "and the tokens of `w1 </s>` that its reference KL is summed over",
        "w1 and the end token",
        2.0,
    ),
    Fault(
        "pad_in_prompt",
        "L4",
        "tokens trained as the completion `w1 </s>` of the prompt `t0 <pad> w9 a0`",
        "prompt and completion are told apart by position",
        2.0,
    ),
    Fault(
        "equal_rewards",
        "L5",
        "largest movement of a weight by a step on rewards 0.5, 0.5",
        "no signal, no step, no weight decay",
        0.0,
        1e-12,
    ),
    Fault(
        "missing_reward",
        "L6",
        "weight of the first completion's tokens, rewards 1, NaN, 0.5, inf",
        "two are there: A = 1 - 0.75, n = 2",
        0.125,
    ),
    Fault(
        "sampled_distribution",
        "L7",
        "log-probability of a completion that was sampled at 0.6, top_k 50, top_p 0.6",
        "softmax of logits / 0.6 over what top-k, then top-p keep, in plain Python",
        None,
        1e-5,
    ),
    Fault(
        "dropout",
        "L7",
        "log-probability in the update of a model with dropout, temperature 1, all tokens",
        "the model that was sampled from has none: log-softmax in plain Python",
        None,
        1e-5,
    ),
    Fault(
        "discount",
        "L8",
        "return of the first joint action at turn 1 of 2, discount 0",
        "its reward",
        _FIRST_REWARD,
    ),
    Fault(
        "crossed",
        "L9",
        'return of completion 1 of agent 0, joint_mode="crossed", rewards 1, 0, 0.5, 0.25',
        "refused; as `cross` (0.5 + 0.25) / 2",
        0.375,
    ),
    *(
        Fault(
            f"normalised_{mode}",
            "L10",
            f"first advantage of returns 1, 2, 4, 5, `{mode}`, normalised",
            {
                "rloo": "(4 * 1 - 12) / 3 / sqrt(2.5)",
                "max": "(1 - 5) / sqrt(2.5)",
                "raw": "1 / sqrt(11.5)",
            }[mode],
            _normalised(mode),
        )
        for mode in ("rloo", "max", "raw")
    ),
    Fault(
        "top_k_off",
        "L11",
        "tokens that can be sampled of a vocabulary of 128, top_k=None, top_p=1",
        "all",
        128.0,
    ),
    Fault(
        "long_prompt",
        "L12",
        "tokens that the model sees of a prompt of 100, where 32 fit",
        "none: refused by name, nothing is cut",
        "refused",
    ),
    Fault(
        "two_bos",
        "L14",
        "begin tokens of a prompt that brings its own",
        "one",
        1.0,
    ),
    Fault(
        "users_tokenizer",
        "L15",
        "pad token of the user's tokenizer, which had none",
        "it is the user's",
        "None",
    ),
    Fault(
        "three_agents",
        "L18",
        "three models and num_agents left at its default",
        "three agents, no error",
        "none",
    ),
    Fault(
        "later_turns_logged",
        "L20",
        "rows with turn 2 of a run of 20 joint actions, logging_steps 50",
        "one",
        1.0,
    ),
    Fault(
        "bfloat16",
        "L21",
        "median movement of a bfloat16 weight by AdamW's first step, in learning rates (5e-6)",
        "m / sqrt(v) = 1 at the first step, so one learning rate, kept in float32",
        1.0,
        0.01,
    ),
    Fault(
        "iterable",
        "L22",
        "training on an IterableDataset",
        "no error",
        "none",
    ),
    Fault(
        "by_count",
        "U1",
        "reward of `reward(a, b, bonus=None)`, 1 with a bonus, else 0",
        "nobody gives a bonus",
        0.0,
    ),
    Fault(
        "type_error",
        "U2",
        "calls of a reward function that raises TypeError",
        "one, and the run stops",
        1.0,
    ),
    Fault(
        "changed_history",
        "U4",
        "prompts in the history that a sibling branch sees after a transition changed its own",
        "each sees its own: one",
        1.0,
    ),
)
