from __future__ import annotations

import math

import pytest
from tests.support.trees import make_node

from antiphon.clients.types import FieldError
from antiphon.learner.rollout.tree import joint_indices


def test_aligned_pairs_the_completions_of_one_index() -> None:
    assert joint_indices("aligned", 3, 2) == [(0, 0, 0), (1, 1, 1)]


def test_cross_takes_the_product_with_the_last_agent_fastest() -> None:
    assert joint_indices("cross", 2, 3) == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("num_agents", [1, 3, 4])
def test_joint_actions_are_of_as_many_agents_as_were_given(num_agents: int) -> None:
    """L18: N is what was given."""
    assert all(len(j) == num_agents for j in joint_indices("aligned", num_agents, 4))
    assert len(joint_indices("cross", num_agents, 2)) == 2**num_agents


@pytest.mark.parametrize("mode", ["crossed", "Cross", "x", "ALIGNED", ""])
def test_only_the_two_spellings_of_the_joint_mode_are_accepted(mode: str) -> None:
    """L9: anything else is refused."""
    with pytest.raises(FieldError, match=f"joint_mode: got '{mode}'"):
        joint_indices(mode, 2, 2)


@pytest.mark.parametrize(("agents", "generations", "name"), [(0, 2, "agents"), (2, 0, "gener")])
def test_counts_below_one_are_refused(agents: int, generations: int, name: str) -> None:
    with pytest.raises(FieldError, match=name):
        joint_indices("aligned", agents, generations)


def test_mean_reward_is_over_the_joint_actions_that_have_one() -> None:
    """L6: missing and non-finite rewards are in no mean."""
    assert make_node([1.0, None, 0.5, math.nan, math.inf, -math.inf]).mean_reward == 0.75
    assert make_node([None, math.nan]).mean_reward is None


def test_walk_is_pre_order_in_order_of_joint_action() -> None:
    grandchild = make_node([0.0], path=(1, 0))
    children = {
        2: make_node([0.0], path=(2,)),
        1: make_node([0.0], path=(1,), children={0: grandchild}),
    }
    root = make_node([0.0, 0.0, 0.0], children=children)
    assert [node.path for node in root.walk()] == [(), (1,), (1, 0), (2,)]
