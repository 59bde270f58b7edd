"""The reference KL as a term of the loss."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tests.support.policies import (
    F32,
    SETTINGS,
    VOCABULARY,
    make_model,
    minibatch,
    reference_gradient,
    row_logprobs,
)
from torch import nn

from antiphon.clients.types import FieldError
from antiphon.learner.arithmetic.samples import TrainingSample
from antiphon.learner.policy.policy import Policy


def with_reference(nodes: Sequence[TrainingSample], model: nn.Module) -> list[TrainingSample]:
    """The nodes with what a reference says of their tokens, full softmax at temperature 1."""
    with torch.no_grad():
        return [
            replace(
                node,
                completions=tuple(
                    replace(
                        c,
                        reference_logprobs=tuple(
                            row_logprobs(
                                model, node.prompt_token_ids, c.token_ids, VOCABULARY, 1.0
                            ).tolist()
                        ),
                    )
                    for c in node.completions
                ),
            )
            for node in nodes
        ]


@pytest.mark.parametrize("normalization", ["sequence", "token", "constant"])
def test_a_reference_kl_in_the_loss_equals_the_equations(normalization: str) -> None:
    """beta * sum_t w_t k3_t with gradient, weights of the loss; dead nodes have no part in it."""
    model, beta = make_model(), 0.5
    nodes = with_reference(minibatch(model, kept=5), make_model(seed=1))
    start = copy.deepcopy(model)
    kl = torch.zeros(())
    tokens = sum(len(c.token_ids) for n in nodes for c in n.completions)
    for node in nodes:
        for completion in node.completions:
            now = row_logprobs(start, node.prompt_token_ids, completion.token_ids, VOCABULARY, 1.0)
            ratio = (torch.tensor(completion.reference_logprobs) - now).exp()
            divisor = {"sequence": len(node.completions) * 2, "token": tokens, "constant": 5 * 8}
            kl = kl + (ratio - ratio.log() - 1).sum() / divisor[normalization]
    names, parameters = zip(*start.named_parameters(), strict=True)
    of_kl = dict(zip(names, torch.autograd.grad(beta * kl, parameters), strict=True))
    of_loss = reference_gradient(start, nodes, kept=5, weights=normalization)
    dead = [replace(nodes[0], dead=True)]
    settings = replace(SETTINGS, loss_normalization=normalization, reference_kl_coef=beta)
    stats = Policy(0, model, settings, wire_dtype=F32).step(nodes + dead)
    assert stats.reference_kl_loss == pytest.approx(beta * kl.item(), rel=1e-4)
    plain = Policy(
        0, copy.deepcopy(start), replace(settings, reference_kl_coef=0.0), wire_dtype=F32
    ).step(nodes)
    assert stats.loss == pytest.approx(plain.loss + beta * kl.item(), rel=1e-4)
    norm = math.sqrt(sum((of_kl[n] + of_loss[n]).double().pow(2).sum().item() for n in names))
    assert stats.grad_norm == pytest.approx(norm, rel=1e-4)
    assert abs(plain.grad_norm - norm) > 1e-2 * norm


def test_a_reference_kl_in_the_loss_needs_what_the_reference_said() -> None:
    model = make_model()
    policy = Policy(0, model, replace(SETTINGS, reference_kl_coef=0.1))
    with pytest.raises(FieldError, match=r"reference_logprobs: got none"):
        policy.step(minibatch(model))
