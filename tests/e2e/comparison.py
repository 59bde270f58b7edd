"""Runs MAGRPOTrainer on tiny models in local mode, and the reference on what was sampled."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tests.e2e import reference, tiny_task
from tests.e2e.recording import Recording, record_generation
from tests.support import run_folders
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from antiphon.clients.types import Completion
from antiphon.learner import MAGRPOConfig, MAGRPOTrainer


@dataclass
class Compared:
    """A run and its reference: `trees` by task, `agents` [N], rewards as the user saw them."""

    trainer: MAGRPOTrainer
    folder: Path
    settings: reference.Settings
    recording: Recording
    trees: list[reference.Node]
    agents: list[reference.Agent]
    reward_calls: list[tuple[str, ...]] = field(default_factory=list)

    def largest_weight_difference(self) -> float:
        """Trained against reference, over all parameters; relative where a weight is above 1."""
        differences: list[float] = [
            ((parameter.detach().double() - expected).abs() / expected.abs().clamp_min(1))
            .max()
            .item()
            for trained, agent in zip(self.trainer.agents, self.agents, strict=True)
            for parameter, expected in zip(trained.parameters(), agent.parameters, strict=True)
        ]
        return max(differences)

    def largest_logprob_difference(self) -> float:
        """Engine against the reference's model at the version that the engine reported."""
        differences = []
        for index, agent in enumerate(self.agents):
            for completion in self.completions(index):
                (span,) = completion.weights_spans
                model = agent.at_version(span.weights_version)
                with torch.no_grad():
                    expected, forced = reference.logprobs(model, completion, self.settings)
                assert forced == 0, "at the weights sampled from, nothing is forced"
                came = torch.tensor(completion.logprobs, dtype=torch.float64)
                differences.append((came - expected).abs().max().item())
        return max(differences)

    def completions(self, agent: int) -> list[Completion]:
        """Everything that an agent sampled."""
        return [c for batch in self.recording.batches[agent] for c in batch.completions]


def run_and_compare(
    monkeypatch: pytest.MonkeyPatch,
    models: Sequence[LlamaForCausalLM],
    tokenizer: PreTrainedTokenizerFast,
    settings: reference.Settings,
    *,
    max_new_tokens: int = 8,
    reward: reference.Rewards = tiny_task.reward,
    next_prompts: reference.NextPrompts = tiny_task.next_prompts,
    transition: Callable[..., Any] = tiny_task.transition,
    prompts: Sequence[str] = tiny_task.PROMPTS,
    addresses: Sequence[str] | None = None,
    directory: Path,
) -> Compared:
    """Trains one epoch over `prompts` and computes the same again from what was sampled.

    Without `addresses` of generation services the run starts its own.
    """
    agents = [reference.Agent(i, model, settings) for i, model in enumerate(models)]
    recording = record_generation(monkeypatch)
    calls: list[tuple[str, ...]] = []
    monkeypatch.chdir(directory)
    trainer = MAGRPOTrainer(
        agents=[copy.deepcopy(model) for model in models],
        num_agents=len(models),
        tokenizer=tokenizer,
        reward_func=tiny_task.as_reward_function(reward, calls),
        external_transition=transition,
        train_dataset=Dataset.from_dict({"prompt": list(prompts)}),
        args=MAGRPOConfig(
            num_agents=len(models),
            num_turns=settings.num_turns,
            num_train_epochs=1,
            num_generations=settings.num_generations,
            max_new_tokens=max_new_tokens,
            agent_learning_rate=settings.learning_rate,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            discount=settings.discount,
            early_termination_threshold=settings.threshold,
            rollout_buffer_size=settings.buffer_size,
            importance_ratio=settings.importance_ratio,
            clip_ratio_low=settings.clip,
            clip_ratio_high=settings.clip,
            advantage_normalization=settings.normalize,
            adam_epsilon=settings.adam_epsilon,
            wire_dtype="float32",
            logging_steps=1,
            seed=7,
        ),
        generation_addresses=addresses,
    )
    trainer.train()
    trees = _replay(recording, agents, prompts, reward, next_prompts, settings)
    folder = run_folders.find(directory)
    return Compared(trainer, folder, settings, recording, trees, agents, calls)


def _replay(
    recording: Recording,
    agents: Sequence[reference.Agent],
    prompts: Sequence[str],
    reward: reference.Rewards,
    next_prompts: reference.NextPrompts,
    settings: reference.Settings,
) -> list[reference.Node]:
    """The reference's own pass over the recorded batches, task after task."""
    queues = [iter(recording.batches[agent.index]) for agent in agents]

    def batches() -> list[list[list[Completion]]]:
        return [next(queue).by_prompt() for queue in queues]

    trees = []
    for prompt in prompts:
        tree = reference.grow([prompt] * len(agents), batches, reward, next_prompts, settings)
        trees.append(tree)
        for agent in agents:
            for node in tree.walk():
                agent.add(node)
            if prompt is prompts[-1]:
                agent.drain()
            agent.publish()
    assert all(next(queue, None) is None for queue in queues), "more was sampled than has a place"
    return trees
