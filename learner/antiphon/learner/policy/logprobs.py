"""The learner's log-probabilities of the tokens that were sampled.

Logits take V numbers a token, more than all else: they are made for completion tokens alone and
some at a time, and where sampling kept few tokens, only those of them that were kept get a gradient
(`antiphon.learner.policy.kept_head`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from antiphon.learner.policy.forward import Forward
from antiphon.learner.policy.kept_head import is_worth_it, kept_logits
from antiphon.learner.policy.micro_batches import (
    LogprobSupport,
    MicroBatch,
    Row,
    Tokens,
    collate,
    idle_pack,
    split_rows,
)
from antiphon.learner.policy.ranks import Ranks
from antiphon.services.common.sampling import (
    TokenLogprobs,
    full_logprobs,
    kept_logprobs,
    token_logprobs,
)

_LOGITS = 2**23
"""How many logits are held at a time."""


def parts_of(
    forward: Forward, states: Tensor, tokens: Tokens, *, whole_logits: bool
) -> Iterator[tuple[Tensor, Tokens]]:
    """States and tokens of a micro-batch, as many at a time as their logits leave room for.

    Args:
        forward: The model's.
        states: What `forward.states` gave, [K, H].
        tokens: The tokens [K].
        whole_logits: Whether all logits of a token need a gradient; if not, all come as one part.
    """
    size = _rows_at_a_time(forward, states) if whole_logits else len(tokens)
    yield from zip(torch.split(states, size), tokens.split(size), strict=True)


def needs_whole_logits(forward: Forward, tokens: Tokens, support: str) -> bool:
    """Whether log-probabilities under `support` need a gradient at all logits of a token."""
    weight = forward.linear_head
    if support == LogprobSupport.FULL or weight is None:
        return True
    return not is_worth_it(tokens.kept_sizes, weight.shape[0])


def support_logprobs(
    forward: Forward, states: Tensor, tokens: Tokens, *, temperature: float, support: str
) -> TokenLogprobs:
    """Log-probabilities [K], with gradient, and what was forced, from states [K, H].

    Args:
        forward: The model's.
        states: What predicts the tokens.
        tokens: The tokens.
        temperature: The sampling temperature.
        support: A LogprobSupport; `sampled` rebuilds the kept set of the engine's size.
    """
    weight = forward.linear_head
    if weight is not None and not needs_whole_logits(forward, tokens, support):
        values, sets = kept_logits(
            states,
            weight,
            tokens.token_ids,
            tokens.kept_sizes,
            rows=_rows_at_a_time(forward, states),
            sparse=forward.is_lean,
        )
        return kept_logprobs(values, sets, temperature or 1.0)
    return logits_logprobs(forward.logits(states), tokens, temperature=temperature, support=support)


def logits_logprobs(
    logits: Tensor, tokens: Tokens, *, temperature: float, support: str
) -> TokenLogprobs:
    """As `support_logprobs`, from logits [K, V]."""
    kept = tokens.kept_sizes
    if support == LogprobSupport.FULL:
        kept = torch.full_like(kept, logits.shape[-1])
    return token_logprobs(logits, tokens.token_ids, kept, temperature)


def batch_logprobs(
    forward: Forward, batch: MicroBatch, *, temperature: float, support: str
) -> TokenLogprobs:
    """`support_logprobs` of a whole micro-batch under the model as it is now."""
    states = forward.states(batch)
    return support_logprobs(forward, states, batch.tokens, temperature=temperature, support=support)


@torch.no_grad()
def plain_logprobs(
    forward: Forward,
    rows: Sequence[Row],
    device: torch.device,
    *,
    tokens: int,
    size: int | None = None,
    ranks: Ranks | None = None,
) -> list[tuple[float, ...]]:
    """Log-probabilities of each row's completion under the full softmax at temperature 1 [C].

    Args:
        forward: That of a model on `device`.
        rows: Completions and their prompts.
        device: Where it computes.
        tokens: Most packs times columns of one forward.
        size: Most rows of one forward; None sets no limit.
        ranks: The processes that hold the model together, each with rows of its own; None for
            this one alone.
    """
    logprobs: dict[int, tuple[float, ...]] = {}
    batches = split_rows(rows, tokens=tokens, size=size, shared_up_to=forward.shared_up_to)
    rounds = (ranks or Ranks()).rounds(len(batches))
    for packs in [*batches, *[[idle_pack()]] * (rounds - len(batches))]:
        batch = collate(packs, LogprobSupport.SAMPLED, device)
        values = torch.cat(
            [
                full_logprobs(forward.logits(states), part.token_ids, 1.0)
                for states, part in parts_of(
                    forward, forward.states(batch), batch.tokens, whole_logits=True
                )
            ]
        )
        part_rows = [row for pack in packs for row in pack]
        per_row = torch.split(values, [row.length for row in part_rows])
        logprobs |= {id(row): tuple(v.tolist()) for row, v in zip(part_rows, per_row, strict=True)}
    return [logprobs[id(row)] for row in rows]


def _rows_at_a_time(forward: Forward, states: Tensor) -> int:
    if forward.head is None:
        return max(1, states.shape[0])
    weight = next(forward.head.parameters())
    return max(1, _LOGITS // max(weight.shape))
