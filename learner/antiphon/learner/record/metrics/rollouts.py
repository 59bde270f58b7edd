"""What trees and their groups came to."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from antiphon.learner.record.figures import Missing, NodeFigures
from antiphon.learner.record.metrics.making import Maker
from antiphon.learner.rollout.tree import BranchStop

DEAD = ("no_difference", "too_few_returns")
"""Why a group teaches nothing."""

_REWARDS = (-10, -5, -2, -1, -0.5, -0.2, -0.1, 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
_REWARD_BUCKETS = (*_REWARDS, 2, 5, 10)


class RolloutMetrics:
    """Rewards, returns, nodes, groups, tokens."""

    def __init__(self, make: Maker) -> None:
        self._reward = make.histogram(
            "reward",
            "Rewards of joint actions, after the reward processor.",
            _REWARD_BUCKETS,
            "turn",
        )
        self._reward_mean = make.gauge(
            "reward_mean", "Mean reward of the last batch's nodes.", "turn"
        )
        self._expected_return = make.gauge(
            "expected_return", "Mean return of the last batch's nodes.", "turn"
        )
        self._agent_return = make.gauge(
            "agent_expected_return",
            "Mean of the returns that an agent was trained on in the last batch.",
            "turn",
            "agent",
        )
        self._reference_kl = make.gauge(
            "reference_kl_mean",
            "Mean reference KL of the last batch's completions, summed over their tokens.",
            "turn",
            "agent",
        )
        self._nodes = make.counter("nodes", "Nodes of trees grown.", "turn")
        self._joint_actions = make.counter("joint_actions", "Joint actions made.", "turn")
        self._missing = make.counter("missing_rewards", "Joint actions without a reward.", "reason")
        self._stops = make.counter("branches_stopped", "Branches that ended, by why.", "reason")
        self._skipped = make.counter("prompts_skipped", "Prompts too long for the context.")
        self._groups = make.counter(
            "groups", "Groups: one agent's completions at one node.", "agent"
        )
        self._dead = make.counter(
            "dead_groups",
            "Groups that teach nothing: their returns do not differ, or fewer than two are there.",
            "agent",
            "reason",
        )
        self._spread = make.gauge(
            "advantage_spread", "Largest minus smallest advantage, mean of live groups.", "agent"
        )
        self._generated = make.counter("generated_tokens", "Tokens of completions.", "agent")

    def begin(self, num_agents: int) -> None:
        """Tell that what never happened is 0, not unknown."""
        for agent in range(num_agents):
            for reason in DEAD:
                self._dead.labels(agent, reason)
        for missing in Missing:
            self._missing.labels(missing.value)
        for stop in BranchStop:
            self._stops.labels(stop.value)

    def batch(self, nodes: Sequence[NodeFigures], skipped: int) -> None:
        """Tell what a rollout batch came to."""
        self._skipped.inc(skipped)
        spreads: dict[int, list[float]] = {}
        reference_kls: dict[tuple[int, int], list[float]] = {}
        returns: dict[tuple[int, int], list[float]] = {}
        for figures in nodes:
            turn = figures.node.turn
            self._nodes.labels(turn).inc()
            self._joint_actions.labels(turn).inc(len(figures.node.branches))
            for reward in figures.rewards:
                self._reward.labels(turn).observe(reward)
            for reason, count in figures.missing.items():
                self._missing.labels(reason.value).inc(count)
            for stop, count in figures.stops.items():
                self._stops.labels(stop).inc(count)
            for agent, group in enumerate(figures.advantages):
                self._groups.labels(agent).inc()
                present = [r for r in figures.agent_returns[agent] if r is not None]
                returns.setdefault((turn, agent), []).extend(present)
                if group.dead:
                    self._dead.labels(agent, DEAD[len(present) < 2]).inc()
                self._generated.labels(agent).inc(figures.completion_tokens(agent))
                if not group.dead:
                    spreads.setdefault(agent, []).append(figures.advantage_spread(agent))
                if kls := figures.reference_kls(agent):
                    reference_kls.setdefault((turn, agent), []).extend(kls)
        for agent, values in spreads.items():
            self._spread.labels(agent).set(fmean(values))
        for (turn, agent), values in reference_kls.items():
            self._reference_kl.labels(turn, agent).set(fmean(values))
        for (turn, agent), values in returns.items():
            if values:
                self._agent_return.labels(turn, agent).set(fmean(values))

    def turn(self, turn: int, reward_mean: float | None, expected_return: float | None) -> None:
        """Tell a turn's means over the last batch."""
        if reward_mean is not None:
            self._reward_mean.labels(turn).set(reward_mean)
        if expected_return is not None:
            self._expected_return.labels(turn).set(expected_return)
