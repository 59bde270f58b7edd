"""What a tree came to, node by node: the numbers that record, metrics and progress tell.

They are computed by the functions that training uses (returns, advantages), so what is told is
what was trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from antiphon.clients.types import Completion
from antiphon.learner.arithmetic.advantages import GroupAdvantages, group_advantages
from antiphon.learner.arithmetic.returns import present_mean, trained_returns, tree_returns
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.rollout.tree import Branch, Node


class Missing(StrEnum):
    """Why a joint action has no reward."""

    NO_SCORE = "no_score"
    NOT_FINITE = "not_finite"
    REWARD_PROCESSOR = "reward_processor"


@dataclass(frozen=True)
class NodeFigures:
    """A node and its numbers.

    `returns` holds R_j by joint action, `agent_returns` [N][G] and `advantages` [N] each agent's
    group; `agent_returns` are what is trained on, less a reference KL where the returns pay one.
    """

    node: Node
    returns: list[float | None]
    agent_returns: list[list[float | None]]
    advantages: list[GroupAdvantages]
    return_kl_coef: float = 0.0

    @property
    def mean_reward(self) -> float | None:
        """Mean reward of the joint actions that have one."""
        return self.node.mean_reward

    @property
    def mean_return(self) -> float | None:
        """Mean return of the joint actions that have one."""
        return present_mean(self.returns)

    @property
    def rewards(self) -> list[float]:
        """Rewards of the joint actions that have one."""
        return [r for b in self.node.branches if (r := b.finite_reward) is not None]

    @property
    def component_means(self) -> dict[str, float]:
        """Mean of each named component over the scores that have it."""
        values: dict[str, list[float]] = {}
        for branch in self.node.branches:
            for name, value in branch.score.components.items() if branch.score else ():
                values.setdefault(name, []).append(value)
        return {name: fmean(of_name) for name, of_name in values.items()}

    @property
    def missing(self) -> Counter[Missing]:
        """Joint actions without a reward, by why."""
        return Counter(
            missing for branch in self.node.branches if (missing := missing_reward(branch))
        )

    @property
    def stops(self) -> Counter[str]:
        """Branches without a child, by why."""
        return Counter(b.stop.value for b in self.node.branches if b.stop is not None)

    def completion_tokens(self, agent: int) -> int:
        """Tokens that an agent generated here."""
        return sum(len(c.token_ids) for c in self.node.completions[agent])

    def reference_kls(self, agent: int) -> list[float]:
        """Reference KL of an agent's completions that have a return; none where none is held."""
        if not self.node.references:
            return []
        terms = zip(self.node.references[agent], self.agent_returns[agent], strict=True)
        return [term.kl for term, return_ in terms if return_ is not None]

    def advantage_spread(self, agent: int) -> float:
        """Largest minus smallest advantage of an agent's group; 0 where it is dead."""
        values = [a for a in self.advantages[agent].values if a is not None]
        return max(values) - min(values) if values else 0.0


def tree_figures(root: Node, config: MAGRPOConfig) -> Iterator[NodeFigures]:
    """Figures of every node, in pre-order."""
    returns = tree_returns(root, config.discount)
    for node in root.walk():
        agents = range(len(node.completions))
        agent_returns = [
            trained_returns(node, returns[node.path], agent, config.return_kl_coef)
            for agent in agents
        ]
        yield NodeFigures(
            node=node,
            returns=returns[node.path],
            agent_returns=agent_returns,
            advantages=[
                group_advantages(r, config.advantage_mode, config.advantage_normalization)
                for r in agent_returns
            ],
            return_kl_coef=config.return_kl_coef,
        )


def missing_reward(branch: Branch) -> Missing | None:
    """Why a branch has no reward, None where it has one."""
    if branch.finite_reward is not None:
        return None
    if branch.score is not None and branch.score.value is not None:
        return Missing.REWARD_PROCESSOR
    if branch.score is not None and (branch.score.missing_reason or "").startswith("not finite"):
        return Missing.NOT_FINITE
    return Missing.NO_SCORE


def weights_versions(completion: Completion) -> list[int]:
    """Weights versions that a completion was sampled under, oldest first."""
    return sorted({span.weights_version for span in completion.weights_spans})
