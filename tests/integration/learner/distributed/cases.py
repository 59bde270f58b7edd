"""What policies are trained on, alone and by several ranks, in the tests of sharding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from tests.support.policies import (
    BF16,
    F32,
    SETTINGS,
    VOCABULARY,
    make_model,
    row_logprobs,
    sampled_by,
)

from antiphon.clients.types import TensorDtype
from antiphon.learner.arithmetic.samples import TrainingSample
from antiphon.learner.config.lora import LoraSettings
from antiphon.learner.policy.micro_batches import plain_row
from antiphon.learner.policy.policy import PolicySettings

EOS = 2


@dataclass(frozen=True)
class Case:
    """How a policy is trained; its engine gap is a difference of numbers of size `logprobs`."""

    settings: PolicySettings = SETTINGS
    wire: TensorDtype = F32
    lora: LoraSettings | None = None
    steps: int = 3
    logprobs: float = 1.0


# Ranks have micro-batches of other numbers and sizes than one process has.
SMALL = replace(SETTINGS, micro_batch_tokens=12, max_grad_norm=0.5)
CASES = {
    "plain": Case(SMALL),
    # At importance ratios far from 1, rounding weighs more than what is compared.
    "recomputed": Case(
        replace(SMALL, activation_checkpointing=True, logprob_support="full", learning_rate=1e-4),
        logprobs=10.0,
    ),
    "bf16-wire": Case(SMALL, BF16),
    # Few weights move by a bf16 unit, so what changed is sent alone.
    "small-steps": Case(replace(SMALL, learning_rate=2e-5), BF16),
    # AdamW makes steps of a size of their own of gradients near 0, which differ by rounding.
    "reference-kl": Case(replace(SMALL, reference_kl_coef=0.1, learning_rate=1e-4)),
    "bf16": Case(replace(SMALL, compute_dtype="bfloat16"), BF16),
    "lora": Case(SMALL, lora=LoraSettings(r=2, target_modules=("q_proj", "down_proj"))),
    # Scaled by alpha / sqrt(3), which bf16 does not hold.
    "lora-bf16-wire": Case(
        SMALL, BF16, LoraSettings(r=3, use_rslora=True, target_modules=("q_proj", "down_proj"))
    ),
    "frozen": Case(replace(SMALL, trainable=False), steps=1),
}


ROWS = [
    plain_row(prompt, completion)
    for prompt, completion in [
        ((5,), (20, 21, EOS)),
        ((6, 7, 8, 9), (EOS,)),
        ((5,), (22, EOS)),
        ((8, 1), (3, 4, 5, 6, 7)),
        ((5,), (9,)),
    ]
]
"""What a policy and its reference are asked the log-probabilities of."""


def minibatches_of(step: int) -> list[list[TrainingSample]]:
    """The minibatches of a step; the second step has two."""
    model = make_model(seed=7)
    first = [([20, 21, EOS], 1.0), ([22, EOS], -0.5), ([EOS], -0.25), ([9, 9, 9, 9, 9], -0.25)]
    second = [([23, 24, 25, 26, EOS], -1.0), ([27], 1.0)]
    third = [([3 + step, 4, 5], 0.75), ([6, 7, 8, 9, 10, EOS], -0.75)]
    nodes = [
        full(sampled_by(model, prompt, completions, kept=5))
        for prompt, completions in (([5], first), ([6, 7, 8, 9], second), ([8, 1], third))
    ]
    return [nodes[:2], nodes[2:]] if step == 1 else [nodes[: step + 1]]


def full(sample: TrainingSample) -> TrainingSample:
    """With log-probabilities of the full softmax, near the trained model's, and of a reference."""
    trained = make_model(seed=4)

    def full_logprobs(tokens: Sequence[int]) -> tuple[float, ...]:
        with torch.no_grad():
            own = row_logprobs(
                trained, sample.prompt_token_ids, tokens, VOCABULARY, SETTINGS.temperature
            )
        return tuple(min(logprob + 0.05, 0.0) for logprob in own.tolist())

    return replace(
        sample,
        completions=tuple(
            replace(
                c,
                full_logprobs=full_logprobs(c.token_ids),
                reference_logprobs=tuple(logprob - 0.25 for logprob in c.logprobs),
            )
            for c in sample.completions
        ),
    )
