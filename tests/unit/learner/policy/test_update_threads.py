"""How many threads the updates of a run get."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from antiphon.learner.policy.setup import update_threads

SMALL, LARGE = nn.Linear(8, 8), nn.Linear(1000, 1000)


def setup(*models: nn.Module, threads: int, ranks_here: int | None = None) -> Any:
    agents = [SimpleNamespace(model=model) for model in models]
    ranks = None if ranks_here is None else SimpleNamespace(ranks_here=ranks_here)
    return SimpleNamespace(agents=agents, threads=threads, ranks=ranks)


@pytest.mark.parametrize(("models", "threads"), [((SMALL, SMALL), 1), ((SMALL, LARGE), 8)])
def test_small_policies_are_updated_in_turn_and_a_large_one_gets_all_threads(
    models: tuple[nn.Module, ...], threads: int
) -> None:
    assert update_threads(setup(*models, threads=8)) == threads


@pytest.mark.parametrize(("ranks_here", "threads"), [(2, 4), (16, 1)])
def test_ranks_on_this_machine_share_its_threads(ranks_here: int, threads: int) -> None:
    assert update_threads(setup(SMALL, threads=8, ranks_here=ranks_here)) == threads
