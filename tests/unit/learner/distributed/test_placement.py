"""Which ranks hold which policy."""

from __future__ import annotations

import pytest

from antiphon.clients.types import FieldError
from antiphon.learner.distributed.environment import in_job
from antiphon.learner.distributed.placement import placed


def test_shared_policies_are_on_all_ranks() -> None:
    assert placed("shared", 2, 3) == [(0, 1, 2), (0, 1, 2)]


@pytest.mark.parametrize(
    ("policies", "ranks", "wanted"),
    [
        (2, 2, [(0,), (1,)]),
        (2, 4, [(0, 1), (2, 3)]),
        (2, 5, [(0, 1, 2), (3, 4)]),
        (3, 8, [(0, 1, 2), (3, 4, 5), (6, 7)]),
    ],
)
def test_each_policy_has_neighbouring_ranks_of_its_own(
    policies: int, ranks: int, wanted: list[tuple[int, ...]]
) -> None:
    assert placed("per-agent", policies, ranks) == wanted


def test_fewer_ranks_than_policies_are_refused() -> None:
    with pytest.raises(FieldError, match=r"sharding\.placement: got .*3 policies on 2 ranks"):
        placed("per-agent", 3, 2)


def test_torchrun_is_known_by_its_environment() -> None:
    assert in_job({"RANK": "0", "WORLD_SIZE": "2"})
    assert not in_job({"RANK": "0", "WORLD_SIZE": "1"})
    assert not in_job({})
