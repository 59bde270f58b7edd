"""Which ranks hold which policy."""

from __future__ import annotations

from itertools import pairwise

from antiphon.clients.types import FieldError
from antiphon.learner.config.sharding import Placement


def placed(placement: str, policies: int, ranks: int) -> list[tuple[int, ...]]:
    """The ranks of each policy.

    Ranks of a policy follow one another, so that they share nodes; the first policies get one more
    where the number does not divide.

    Raises:
        FieldError: There are fewer ranks than policies that want some of their own.
    """
    if placement == Placement.SHARED:
        return [tuple(range(ranks))] * policies
    if ranks < policies:
        raise FieldError(
            "sharding.placement",
            f'"per-agent", for {policies} policies on {ranks} ranks',
            f'at least {policies} ranks (torchrun --nproc-per-node), or "shared"',
        )
    ends = [ranks * number // policies for number in range(policies + 1)]
    sizes = sorted((b - a for a, b in pairwise(ends)), reverse=True)
    starts = [sum(sizes[:number]) for number in range(policies)]
    return [tuple(range(a, a + size)) for a, size in zip(starts, sizes, strict=True)]
