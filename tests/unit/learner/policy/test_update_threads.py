"""How many policies are updated at once, and how many threads each gets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from antiphon.learner.policy.setup import update_threads

SMALL, LARGE = nn.Linear(8, 8), nn.Linear(1000, 1000)


def setup(*models: nn.Module, threads: int, ranks: Any = None) -> Any:
    agents = [SimpleNamespace(model=model) for model in models]
    policies = [(number,) for number in range(len(models))]
    return SimpleNamespace(agents=agents, policies=policies, threads=threads, ranks=ranks)


@pytest.mark.parametrize(
    ("models", "threads", "wanted"),
    [
        ((SMALL, SMALL), 8, (1, 1)),  # they would wait for each other's Python
        ((SMALL, LARGE), 8, (2, 4)),
        ((LARGE,), 8, (1, 8)),
        ((LARGE, LARGE, LARGE), 2, (2, 1)),
    ],
)
def test_policies_of_one_process_share_its_threads(
    models: tuple[nn.Module, ...], threads: int, wanted: tuple[int, int]
) -> None:
    assert update_threads(setup(*models, threads=threads)) == wanted


@pytest.mark.parametrize(
    ("ranks_here", "side_by_side", "wanted"),
    [
        (2, False, (1, 4)),
        (2, True, (2, 4)),  # this process computes one of the two
        (16, False, (1, 1)),
        (16, True, (2, 1)),  # fewer threads than policies
    ],
)
def test_ranks_share_the_threads_of_their_machine(
    ranks_here: int, side_by_side: bool, wanted: tuple[int, int]
) -> None:
    ranks = SimpleNamespace(ranks_here=ranks_here, side_by_side=side_by_side)
    assert update_threads(setup(SMALL, SMALL, threads=8, ranks=ranks)) == wanted
