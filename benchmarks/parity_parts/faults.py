"""Where CoMLRL 1.4.3 goes wrong: what is given, and the right answer worked out by hand.

Standard library only. The letter and number is the row's in the list of failures that this
project keeps; A is the advantage, n the number of completions of a group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.parity_parts import script

REFUSED = "refused"


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
        "reference KL of `w1 </s>` there, once every weight has grown by a twentieth",
        "k3 of w1 and of the end token, in plain Python from the logits of both models",
        None,
        1e-5,
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
        "evaluation_discount",
        "L8",
        "`eval/turn_1/expected_return`, rewards 1 and 0.5 at turns 1 and 2, discount 0.5",
        "1 + 0.5 * 0.5",
        1.25,
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
        REFUSED,
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
        "evaluation_draws",
        "L19",
        "largest difference of a weight between a run with evaluations and one without",
        "an evaluation trains nothing",
        0.0,
        1e-12,
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
        "one_for_four",
        "U3",
        "rewards made of the one number returned for 4 joint actions of 2 agents (`IACTrainer`)",
        "none: refused, one number per joint action is wanted",
        REFUSED,
    ),
    Fault(
        "two_for_one",
        "U3",
        "reward of a joint action for which `[0.25, 0.75]` was returned",
        "none: refused likewise",
        REFUSED,
    ),
    Fault(
        "changed_history",
        "U4",
        "prompts in the history that a sibling branch sees after a transition changed its own",
        "each sees its own: one",
        1.0,
    ),
    Fault(
        "half_a_transition",
        "U5",
        'what agent 0 is asked at turn 2 of the task `t0`, after `[None, "x"]` from the transition',
        "nothing: refused, every agent needs a prompt",
        REFUSED,
    ),
)
