"""Groups of completions to train on, and a policy of SmolLM2-135M that trains on them."""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import torch
from examples.smollm2 import prepare
from transformers import AutoModelForCausalLM

from antiphon.learner.arithmetic.samples import TrainedCompletion, TrainingSample
from antiphon.learner.policy.logprobs import batch_logprobs
from antiphon.learner.policy.micro_batches import Row, collate, split_rows
from antiphon.learner.policy.policy import Policy, PolicySettings

TEMPERATURE = 0.6
LEARNING_RATE = 5e-6
MOST_KEPT = 16
"""Largest sampling set; with temperature 0.6, top_p 0.6 and top_k 50 most are far smaller."""


def policy(agent: int = 0, *, new_tokens: int) -> Policy:
    """SmolLM2-135M as a run trains it by default: bf16 on the wire, float32 masters."""
    model = AutoModelForCausalLM.from_pretrained(prepare(), dtype=torch.float32)
    settings = PolicySettings(
        temperature=TEMPERATURE, max_new_tokens=new_tokens, learning_rate=LEARNING_RATE
    )
    return Policy(agent, model, settings)


def group(
    trained: Policy, *, prompt: int, completions: int, new_tokens: int, seed: int
) -> TrainingSample:
    """One prompt and its completions, of random tokens, as the policy's engine would report them.

    Args:
        trained: Whose log-probabilities come with the tokens, so that all ratios are 1.
        prompt: Tokens of the prompt, P.
        completions: Completions of it, G.
        new_tokens: Tokens of each, C.
        seed: Fixes all of it.
    """
    drawn = random.Random(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(drawn.randrange(1000, 40_000) for _ in range(count))

    prompt_token_ids = tokens(prompt)
    made = [
        TrainedCompletion(
            token_ids=tokens(new_tokens),
            logprobs=(0.0,) * new_tokens,
            kept_sizes=tuple(drawn.randint(2, MOST_KEPT) for _ in range(new_tokens)),
            return_=0.0,
            advantage=drawn.choice((-1.0, 1.0)),
        )
        for _ in range(completions)
    ]
    return TrainingSample(
        agent=trained.agent,
        turn=1,
        task_id=str(seed),
        row=seed,
        path=(),
        prompt_token_ids=prompt_token_ids,
        completions=tuple(_measured(trained, Row(prompt_token_ids, one, 0.0)) for one in made),
        dead=False,
        mean_reward=0.0,
        mean_return=0.0,
        oldest_version=1,
    )


@torch.no_grad()
def _measured(trained: Policy, row: Row) -> TrainedCompletion:
    (packs,) = split_rows([row], tokens=sys.maxsize, shared_up_to=0)
    batch = collate(packs, "sampled", torch.device("cpu"))
    found = batch_logprobs(trained.forward, batch, temperature=TEMPERATURE, support="sampled")
    return replace(row.completion, logprobs=tuple(found.logprobs.tolist()))
