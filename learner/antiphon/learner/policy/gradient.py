"""The gradient of a micro-batch's loss, without holding its logits [K, V] all at once.

The loss is a sum over tokens, so it is taken some tokens at a time: each part goes back to the
hidden states that it came from, and these go back through the model together, once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from antiphon.learner.arithmetic.loss import LossStats
from antiphon.learner.policy.forward import Forward
from antiphon.learner.policy.logprobs import parts_of
from antiphon.learner.policy.micro_batches import MicroBatch, Tokens

LossOf = Callable[[Tensor, Tokens], tuple[Tensor, LossStats]]
"""The loss of tokens, a scalar with gradient in their states [K, H], and its statistics."""


def add_gradient(
    forward: Forward, batch: MicroBatch, loss_of: LossOf, *, whole_logits: bool
) -> LossStats:
    """Add the gradient of the loss to that of the parameters.

    Args:
        forward: The model's.
        batch: What is trained on.
        loss_of: The loss of some of its tokens, which adds up over them.
        whole_logits: Whether the loss takes the gradient of all logits of a token.

    Returns:
        The sum of the parts' statistics.
    """
    states = forward.states(batch)
    total, gradients = LossStats(), []
    for part, tokens in parts_of(forward, states, batch.tokens, whole_logits=whole_logits):
        given = part.detach().requires_grad_()
        loss, stats = loss_of(given, tokens)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients.append(given.grad if given.grad is not None else torch.zeros_like(given))
        total += stats
    if states.requires_grad:
        torch.autograd.backward([states], [torch.cat(gradients)])
    return total
