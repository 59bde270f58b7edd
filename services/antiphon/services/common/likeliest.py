"""The largest logits of a wide vocabulary, without a pass of selection over all of it."""

from __future__ import annotations

import torch
from torch import Tensor

_MOST_IN_GROUP = 32
_LEAST_IN_GROUP = 4
_GROUPS_PER_KEPT = 4


def likeliest(logits: Tensor, count: int) -> Tensor:
    """Ids [M, count] of the `count` largest of `logits` [M, V], in no order.

    The vocabulary is dealt into groups. A token among the `count` largest can only be in one of the
    `count` groups with the largest maxima, so the selection runs over those: exactly the tokens of
    a plain `topk`, for a fraction of its time. Among equals at the edge either may be taken.
    """
    rows, size = logits.shape
    members = _MOST_IN_GROUP
    while members >= _LEAST_IN_GROUP and size // members < _GROUPS_PER_KEPT * count:
        members //= 2
    if members < _LEAST_IN_GROUP:
        return logits.topk(count, dim=-1, sorted=False).indices
    width = size // members
    # Member i of group j is token i * width + j; the rest behind joins the candidates.
    dealt = logits[:, : members * width].reshape(rows, members, width)
    groups = dealt.amax(dim=1).topk(count, dim=-1, sorted=False).indices
    spread = groups[:, None, :].expand(rows, members, count)
    candidates = torch.cat([dealt.gather(-1, spread).flatten(1), logits[:, members * width :]], -1)
    places = candidates.topk(count, dim=-1, sorted=False).indices
    behind = places - members * count
    group = groups.gather(-1, places % count)
    return torch.where(behind < 0, places // count * width + group, members * width + behind)
