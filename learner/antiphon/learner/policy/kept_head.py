"""The output embedding at the tokens of sampling sets, and its gradient at those tokens alone.

Under a distribution that keeps few of V tokens the loss depends on the logits of those few, so with
G [K, V] its gradient by the logits, zero elsewhere,

    by the states   G W          [K, H]       a weighted sum of a few rows of W per token
    by the weights  G' states    [V, H]       only rows of kept tokens are not zero

take a few per cent of the products of whole logits, two thirds of what the head costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812

from antiphon.services.common.sampling import KeptSets, kept_sets

_WORTH = 32
"""How many times larger than the largest set the vocabulary is where taking sets apart pays."""


def is_worth_it(kept_sizes: Tensor, vocabulary: int) -> bool:
    """Whether the sets are small next to the vocabulary."""
    return int(kept_sizes.max()) * _WORTH <= vocabulary


def kept_logits(
    states: Tensor,
    weight: Tensor,
    token_ids: Tensor,
    kept_sizes: Tensor,
    *,
    rows: int,
    sparse: bool = False,
) -> tuple[Tensor, KeptSets]:
    """Logits [K, k] at the tokens of each sampling set, with gradient, and the sets.

    Args:
        states: Hidden states [K, H].
        weight: The output embedding [V, H].
        token_ids: Sampled tokens, int64 [K].
        kept_sizes: Sizes of their sets, int64 [K].
        rows: How many rows of logits [V] are held at a time.
        sparse: Whether the gradient by the weight is a sparse tensor, of its rows that are not 0.
    """
    sets, values = [], []
    width = int(kept_sizes.max())
    with torch.no_grad():
        for part, ids, kept in zip(
            *(torch.split(one, rows) for one in (states, token_ids, kept_sizes)), strict=True
        ):
            logits = F.linear(part, weight)
            sets.append(kept_sets(logits, ids, kept, width))
            values.append(logits.gather(-1, sets[-1].order))
    whole = _joined(sets)
    at = whole.order, whole.outside, torch.cat(values)
    found: Tensor = _AtKept.apply(states, weight, *at, sparse)  # type: ignore[no-untyped-call]
    return found, whole


def _joined(sets: Sequence[KeptSets]) -> KeptSets:
    return KeptSets(
        order=torch.cat([one.order for one in sets]),
        outside=torch.cat([one.outside for one in sets]),
        place=torch.cat([one.place for one in sets]),
        forced=torch.cat([one.forced for one in sets]),
    )


class _AtKept(torch.autograd.Function):
    """`values` [K, k], which are (states weight')[order], as a function of states and weight."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        order: Tensor,
        outside: Tensor,
        values: Tensor,
        sparse: bool,
    ) -> Tensor:
        ctx.sparse = sparse
        ctx.save_for_backward(states, weight, order, outside)
        return values.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, order, outside = ctx.saved_tensors
        inside = (~outside).flatten().nonzero().squeeze(-1)
        tokens = order.flatten()[inside]
        rows = inside // order.shape[1]
        shares = gradient.flatten()[inside]
        by_states = by_weight = None
        if ctx.needs_input_grad[0]:
            by_states = _weighted_sums(weight, tokens, rows, shares, states.shape[0])
        if ctx.needs_input_grad[1]:
            by_token = tokens.argsort(stable=True)
            touched, groups = tokens[by_token].unique_consecutive(return_inverse=True)
            sums = _weighted_sums(states, rows[by_token], groups, shares[by_token], touched.numel())
            if ctx.sparse:
                by_weight = torch.sparse_coo_tensor(
                    touched[None], sums, weight.shape, check_invariants=False, is_coalesced=True
                )
            else:
                by_weight = torch.zeros_like(weight).index_copy_(0, touched, sums)
        return by_states, by_weight, None, None, None, None


def _weighted_sums(
    table: Tensor, chosen: Tensor, groups: Tensor, shares: Tensor, count: int
) -> Tensor:
    """Sum over the entries of each of `count` ascending groups of share * table[chosen]."""
    starts = torch.searchsorted(groups, torch.arange(count, device=groups.device))
    return F.embedding_bag(chosen, table, starts, mode="sum", per_sample_weights=shares)
