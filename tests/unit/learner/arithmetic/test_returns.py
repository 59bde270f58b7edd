from __future__ import annotations

import math

import pytest
from tests.support.trees import make_node

from antiphon.learner.arithmetic.returns import completion_returns, trained_returns, tree_returns
from antiphon.learner.rollout.tree import Node, ReferenceTerm


def test_return_is_the_reward_plus_the_discounted_mean_of_the_childs_returns() -> None:
    grandchild = make_node([4.0, 8.0], path=(0, 1))
    child = make_node([1.0, 2.0], path=(0,), children={1: grandchild})
    root = make_node([10.0, 20.0], children={0: child})
    # (0, 1): 4, 8. (0,): 1, 2 + 0.5 * 6 = 5. root: 10 + 0.5 * 3 = 11.5, 20.
    assert tree_returns(root, 0.5) == {(): [11.5, 20.0], (0,): [1.0, 5.0], (0, 1): [4.0, 8.0]}


def test_discount_zero_leaves_each_turn_its_own_reward() -> None:
    """L8: turn-1 return = turn-1 reward."""
    root = make_node([0.25, 0.75], children={0: make_node([9.0, -9.5], path=(0,))})
    assert tree_returns(root, 0.0)[()] == [0.25, 0.75]
    assert tree_returns(root, 1.0)[()] == [0.0, 0.75]


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf])
def test_a_missing_reward_is_a_missing_return_and_in_no_mean(bad: float | None) -> None:
    """L6: the bad ones count as missing, the rest train."""
    child = make_node([1.0, bad, 3.0], path=(0,))
    root = make_node([5.0, bad, 7.0], children={0: child})
    assert tree_returns(root, 1.0) == {(): [7.0, None, 7.0], (0,): [1.0, None, 3.0]}


def test_a_child_without_returns_makes_the_return_missing() -> None:
    root = make_node([5.0, 6.0], children={0: make_node([None, None], path=(0,))})
    assert tree_returns(root, 1.0)[()] == [None, 6.0]


def test_aligned_completions_have_the_return_of_their_joint_action() -> None:
    node = make_node([1.0, None, 3.0])
    assert completion_returns(node, [1.0, None, 3.0], 0) == [1.0, None, 3.0]
    assert completion_returns(node, [1.0, None, 3.0], 1) == [1.0, None, 3.0]


def test_cross_completions_have_the_mean_over_the_joint_actions_that_hold_them() -> None:
    # Joint actions (0,0) (0,1) (1,0) (1,1) with returns 1 2 4 8.
    node = make_node([1.0, 2.0, 4.0, 8.0], num_generations=2, mode="cross")
    assert completion_returns(node, [1.0, 2.0, 4.0, 8.0], 0) == [1.5, 6.0]
    assert completion_returns(node, [1.0, 2.0, 4.0, 8.0], 1) == [2.5, 5.0]


def test_cross_means_leave_out_joint_actions_without_a_return() -> None:
    node = make_node([1.0, None, None, None], num_generations=2, mode="cross")
    assert completion_returns(node, [1.0, None, None, None], 0) == [1.0, None]
    assert completion_returns(node, [1.0, 2.0, None, None], 1) == [1.0, 2.0]


def test_cross_of_three_agents_averages_over_both_others() -> None:
    returns = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]  # = 4 g0 + 2 g1 + g2
    node = make_node(returns, num_agents=3, num_generations=2, mode="cross")
    assert completion_returns(node, returns, 0) == [1.5, 5.5]
    assert completion_returns(node, returns, 1) == [2.5, 4.5]
    assert completion_returns(node, returns, 2) == [3.0, 4.0]


def test_cross_children_count_with_the_mean_of_their_joint_actions() -> None:
    child = make_node([1.0, 2.0, 3.0, 10.0], num_generations=2, mode="cross", path=(3,))
    root = make_node([0.0, 0.0, 0.0, 0.5], num_generations=2, mode="cross", children={3: child})
    assert tree_returns(root, 0.5)[()] == [0.0, 0.0, 0.0, 2.5]


def with_kl(node: Node, kls: list[list[float]]) -> Node:
    node.references = tuple(tuple(ReferenceTerm(kl, ()) for kl in agent) for agent in kls)
    return node


def test_a_reference_kl_is_taken_off_after_the_cross_mean_of_its_own_agent() -> None:
    node = make_node([1.0, 2.0, 4.0, 8.0], num_generations=2, mode="cross")
    with_kl(node, [[0.5, 2.0], [1.0, 0.0]])
    joint = tree_returns(node, 1.0)[()]
    assert trained_returns(node, joint, 0, 0.1) == pytest.approx([1.5 - 0.05, 6.0 - 0.2])
    assert trained_returns(node, joint, 1, 0.1) == pytest.approx([2.5 - 0.1, 5.0])
    assert trained_returns(node, joint, 0, 0.0) == [1.5, 6.0]


def test_a_reference_kl_never_reaches_an_earlier_turn_nor_the_joint_returns() -> None:
    child = with_kl(make_node([1.0, 3.0], path=(0,)), [[50.0, 70.0], [0.0, 0.0]])
    root = with_kl(make_node([10.0, 20.0], children={0: child}), [[1.0, 2.0], [0.0, 0.0]])
    returns = tree_returns(root, 0.5)
    assert returns == {(): [11.0, 20.0], (0,): [1.0, 3.0]}
    assert trained_returns(root, returns[()], 0, 2.0) == [9.0, 16.0]
    assert trained_returns(child, returns[(0,)], 0, 2.0) == [-99.0, -137.0]


def test_a_missing_return_stays_missing_whatever_its_kl() -> None:
    node = with_kl(make_node([1.0, None]), [[0.5, 0.5], [0.5, 0.5]])
    assert trained_returns(node, [1.0, None], 0, 1.0) == [0.5, None]
