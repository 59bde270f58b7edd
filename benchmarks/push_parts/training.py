"""Optimiser steps as a run takes them: completions of a real service, a real reward, AdamW."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from examples.length_ratio import length_ratio_reward
from transformers import AutoModelForCausalLM

from antiphon.clients.types import (
    Completion,
    GenerateRequest,
    PromptSamples,
    SamplingParameters,
)
from antiphon.learner.arithmetic.samples import TrainedCompletion, TrainingSample
from antiphon.learner.policy.policy import Policy, PolicySettings
from antiphon.learner.weights.replicas import Replica, RunIdentity

PROMPT = "Describe a city in the clouds:"
GENERATIONS, NEW_TOKENS = 4, 48
SAMPLING = SamplingParameters(1.0, None, None, NEW_TOKENS)
"""Of all tokens: every token then has a gradient, and steps change several times as many weights as
under top_p 0.6, where most tokens are certain."""


def policy(folder: Path, learning_rate: float) -> Policy:
    """The model in `folder`: bf16 on the wire, float32 masters, AdamW with torch's defaults."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    settings = PolicySettings(
        temperature=SAMPLING.temperature, max_new_tokens=NEW_TOKENS, learning_rate=learning_rate
    )
    return Policy(0, model, settings)


async def groups(
    replica: Replica, identity: RunIdentity, version: int, count: int
) -> list[TrainingSample]:
    """So many groups of one prompt, sampled by a service from this version of the weights."""
    seeds = [range(100 * group, 100 * group + GENERATIONS) for group in range(count)]
    request = GenerateRequest(
        run_id=identity.run_id,
        incarnation=identity.incarnation,
        agent=0,
        min_weights_version=version,
        prompts=tuple(PromptSamples(PROMPT, tuple(some)) for some in seeds),
        sampling=SAMPLING,
    )
    sampled: list[list[Completion]] = [[] for _ in range(count)]
    async for completion in replica.client.generate(request, timeout=300.0):
        sampled[completion.prompt_index].append(completion)
    return [_group(some, version) for some in sampled]


def _group(sampled: Sequence[Completion], version: int) -> TrainingSample:
    texts = [completion.text for completion in sampled]
    rewards = length_ratio_reward(texts, texts[1:] + texts[:1])
    mean, deviation = statistics.fmean(rewards), max(statistics.pstdev(rewards), 1e-6)
    return TrainingSample(
        agent=0,
        turn=1,
        task_id="0",
        row=0,
        path=(),
        prompt_token_ids=sampled[0].prompt_token_ids,
        completions=tuple(
            TrainedCompletion(
                token_ids=completion.token_ids,
                logprobs=completion.logprobs,
                kept_sizes=completion.kept_sizes,
                return_=reward,
                advantage=(reward - mean) / deviation,
            )
            for completion, reward in zip(sampled, rewards, strict=True)
        ),
        dead=False,
        mean_reward=mean,
        mean_return=mean,
        oldest_version=version,
    )
