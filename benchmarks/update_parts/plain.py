"""The gradient of a minibatch in the plainest way: one completion at a time, nothing shared."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from benchmarks.results import require
from benchmarks.update_parts.groups import TEMPERATURE
from torch import Tensor, nn

from antiphon.learner.arithmetic.samples import TrainedCompletion, TrainingSample
from antiphon.learner.policy.policy import Policy

ADAM_BETA = 0.9


def plain_gradient(model: nn.Module, nodes: Sequence[TrainingSample]) -> dict[str, Tensor]:
    """Gradient of the loss at ratio 1, -A log pi, mean over a node's completions, then nodes."""
    model.zero_grad()
    with torch.enable_grad():
        for node in nodes:
            for completion in node.completions:
                logprobs = _logprobs(model, node.prompt_token_ids, completion)
                weight = completion.advantage / (len(node.completions) * len(nodes))
                (-weight * logprobs.sum()).backward()  # type: ignore[no-untyped-call]
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def _logprobs(model: nn.Module, prompt: Sequence[int], completion: TrainedCompletion) -> Tensor:
    ids = torch.tensor([[*prompt, *completion.token_ids]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1] / TEMPERATURE
    values = []
    for row, token, kept in zip(logits, completion.token_ids, completion.kept_sizes, strict=True):
        best = row.detach().argsort(descending=True)[:kept]
        if token not in best:
            best[-1] = token
        values.append(row[token] - row[best].logsumexp(0))
    return torch.stack(values)


def first_gradient(policy: Policy) -> dict[str, Tensor]:
    """The gradient that a policy took its first step along: AdamW's first moment / (1 - beta)."""
    moments = policy.state_dict()["moments"]
    return {name: one["exp_avg"] / (1 - ADAM_BETA) for name, one in moments.items()}


def relative_difference(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Norm of the difference of two gradients over the norm of the second.

    Raises:
        RuntimeError: They are of different parameters.
    """
    require(got.keys() == wanted.keys(), f"gradients of {sorted(got.keys() ^ wanted.keys())}")

    def norm(tensors: Sequence[Tensor]) -> float:
        return float(sum(t.double().square().sum() for t in tensors)) ** 0.5

    return norm([got[n] - wanted[n] for n in wanted]) / norm(list(wanted.values()))
