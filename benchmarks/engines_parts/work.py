"""The work that every engine gets: prompts, weights to push, and what its answers are held to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.clients.types import SamplingParameters, TensorDtype
from antiphon.services.common.models import load_model
from antiphon.services.common.tensors import tensor_specs, to_bytes, wire_tensors
from antiphon.services.generation.engine import ChangedTensor, PushedTensor

MODEL = Path.home() / ".cache/antiphon/SmolLM2-135M-Instruct"
BF16 = TensorDtype.BFLOAT16
CHANGED_SHARE = 0.01
"""Of the elements of every tensor: what a step at a learning rate of 5e-6 changes in bf16."""

_PLACES = ("clouds", "desert", "sea", "forest", "snow", "valley", "hills", "moon")
TEXTS = tuple(
    f"Describe a city in the {place}, its people, and what they sing in the evening:"
    for place in _PLACES
)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A completion: its ids, those of its prompt, and a log-probability per token in nats."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class Contender(Protocol):
    """An engine that is up; both kinds of push return the seconds in which it could not sample."""

    async def sample(self, sampling: SamplingParameters, samples: int, seed: int) -> list[Sampled]:
        """Completes all of `TEXTS`, so many times each."""
        ...

    async def push(self, weights: dict[str, Tensor]) -> float:
        """Takes all of the weights."""
        ...

    async def change(self, changes: list[ChangedTensor], after: dict[str, Tensor]) -> float:
        """Takes a delta, after which the weights are as given."""
        ...

    async def stop(self) -> None:
        """Ends it."""
        ...


def pushed(weights: dict[str, Tensor]) -> list[PushedTensor]:
    """Weights as they arrive in a full push."""
    return [
        PushedTensor(spec, memoryview(bytearray(to_bytes(weights[spec.name], BF16))))
        for spec in tensor_specs(weights, BF16)
    ]


def some_changed(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights of which a share is twice as large, and the positions [changed] of those."""
    generator = torch.Generator().manual_seed(0)
    changed, positions = {}, {}
    for name, tensor in weights.items():
        chosen = torch.rand(tensor.numel(), generator=generator) < CHANGED_SHARE
        positions[name] = chosen.nonzero().squeeze(1)
        changed[name] = tensor.clone()
        changed[name].view(-1)[positions[name]] *= 2
    return changed, positions


def changes_to(after: dict[str, Tensor], positions: dict[str, Tensor]) -> list[ChangedTensor]:
    """The delta to weights that differ at these positions."""
    return [
        ChangedTensor(spec, positions[spec.name], after[spec.name].view(-1)[positions[spec.name]])
        for spec in tensor_specs(after, BF16)
    ]


def model_of(weights: dict[str, Tensor]) -> PreTrainedModel:
    """The learner's model with these weights, in float32."""
    model = load_model(MODEL, dtype=torch.float32)
    for name, tensor in wire_tensors(model).items():
        tensor.copy_(weights[name])
    return model


def gap(model: PreTrainedModel, completions: Sequence[Sampled]) -> float:
    """Largest difference, in nats, between told log-probabilities and those of the model."""
    largest = 0.0
    for one in completions:
        with torch.no_grad():
            logits = model(torch.tensor([one.prompt + one.ids])).logits[0, len(one.prompt) - 1 : -1]
        own = logits.log_softmax(-1).gather(-1, torch.tensor(one.ids)[:, None]).squeeze(-1)
        largest = max(largest, float((own - torch.tensor(one.logprobs)).abs().max()))
    return largest


def memory() -> int:
    """Resident bytes of this process and all below it."""
    us = psutil.Process()
    each: list[Any] = [us, *us.children(recursive=True)]
    return sum(one.memory_info().rss for one in each)
