"""Returns of joint actions and of completions.

    R_j = r_j + discount * mean(R of the child node)     where joint action j has a child
    R_j = r_j                                            where it has none
    R_j is missing   where r_j is, or where the child has no return at all

    return of a completion = mean of R_j over the joint actions j that hold it and have a return

In `aligned` exactly one joint action holds a completion; in `cross` G^(N-1) do. A reference KL
(`antiphon.learner.policy.reference`) with coefficient beta is a penalty of a completion y of one
agent,

    trained return of y = return of y - beta * sum over tokens t of k3_t

taken off after the mean over joint actions, so it never reaches an earlier turn or another agent,
and no joint return holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from antiphon.learner.rollout.tree import Node, Path


def present_mean(values: Sequence[float | None]) -> float | None:
    """Mean of the values that are there, None where none is."""
    present = [value for value in values if value is not None]
    return fmean(present) if present else None


def tree_returns(root: Node, discount: float) -> dict[Path, list[float | None]]:
    """Returns R_j of every node's joint actions, by path, in order of joint action."""
    returns: dict[Path, list[float | None]] = {}

    def visit(node: Node) -> list[float | None]:
        joint_returns: list[float | None] = []
        for branch in node.branches:
            value = branch.finite_reward
            if branch.child is not None:
                future = present_mean(visit(branch.child))
                value = None if value is None or future is None else value + discount * future
            joint_returns.append(value)
        returns[node.path] = joint_returns
        return joint_returns

    visit(root)
    return returns


def completion_returns(
    node: Node, joint_returns: Sequence[float | None], agent: int
) -> list[float | None]:
    """Return of each of an agent's completions at a node [G], None where it has none.

    Args:
        node: The node.
        joint_returns: Its joint actions' returns, in order of joint action.
        agent: The agent, from 0.
    """
    holding: list[list[float | None]] = [[] for _ in node.completions[agent]]
    for branch, value in zip(node.branches, joint_returns, strict=True):
        holding[branch.samples[agent]].append(value)
    return [present_mean(values) for values in holding]


def trained_returns(
    node: Node, joint_returns: Sequence[float | None], agent: int, reference_kl_coef: float = 0.0
) -> list[float | None]:
    """What each of an agent's completions at a node is trained on [G], None where it has none.

    Args:
        node: The node; its `references` hold the KL of each completion where one is to be paid.
        joint_returns: Its joint actions' returns, in order of joint action.
        agent: The agent, from 0.
        reference_kl_coef: beta, 0 for no penalty.
    """
    returns = completion_returns(node, joint_returns, agent)
    if reference_kl_coef == 0.0 or not node.references:
        return returns
    return [
        None if value is None else value - reference_kl_coef * reference.kl
        for value, reference in zip(returns, node.references[agent], strict=True)
    ]
