"""Gathers figures until a row of the metrics is due; names follow CoMLRL's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from antiphon.learner.policy.engine_gap import engine_gap
from antiphon.learner.record.figures import NodeFigures

if TYPE_CHECKING:
    from antiphon.learner.policy.updates import AgentUpdate
    from antiphon.learner.weights.publisher import Publication


class Figures:
    """Means, maxima and sums by name since they were last taken."""

    def __init__(self) -> None:
        self._means: dict[str, list[float]] = {}
        self._maxima: dict[str, float] = {}
        self._sums: dict[str, float] = {}

    def mean(self, name: str, value: float | None) -> None:
        """Add a value to a mean; None is in no mean."""
        if value is not None:
            self._means.setdefault(name, []).append(value)

    def maximum(self, name: str, value: float) -> None:
        """Add a value to a maximum."""
        self._maxima[name] = max(value, self._maxima.get(name, value))

    def sum(self, name: str, value: float) -> None:
        """Add a value to a sum."""
        self._sums[name] = self._sums.get(name, 0) + value

    def __bool__(self) -> bool:
        return bool(self._means or self._maxima or self._sums)

    def read(self) -> dict[str, float]:
        """All figures so far."""
        means = {name: fmean(values) for name, values in self._means.items()}
        return {**means, **self._maxima, **self._sums}

    def take(self) -> dict[str, float]:
        """All figures, and begin anew."""
        figures = self.read()
        for kept in (self._means, self._maxima, self._sums):
            kept.clear()
        return figures

    def state_dict(self) -> dict[str, Any]:
        """All that was added since they were last taken."""
        return {"means": self._means, "maxima": self._maxima, "sums": self._sums}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self._means = {name: list(values) for name, values in state["means"].items()}
        self._maxima, self._sums = dict(state["maxima"]), dict(state["sums"])


def add_node(figures: Figures, node: NodeFigures) -> None:
    """Add a node under ``turn_1/...`` and ``agent_0/...``."""
    turn = f"turn_{node.node.turn}"
    figures.mean(f"{turn}/reward_mean", node.mean_reward)
    figures.mean(f"{turn}/expected_return", node.mean_return)
    figures.sum(f"{turn}/nodes", 1)
    figures.sum(f"{turn}/joint_actions", len(node.node.branches))
    figures.sum(f"{turn}/missing_rewards", sum(node.missing.values()))
    if node.node.prompts and node.node.prompts[0].roles:
        figures.sum(f"{turn}/unsplit_completions", node.node.unsplit)
    for component, value in node.component_means.items():
        figures.mean(f"{turn}/components/{component}", value)
    for stop, count in node.stops.items():
        figures.sum(f"{turn}/stop/{stop}", count)
    for agent, group in enumerate(node.advantages):
        name = f"agent_{agent}"
        if not group.dead:
            figures.mean(f"{name}/advantage_spread", node.advantage_spread(agent))
        tokens = node.completion_tokens(agent)
        figures.sum(f"{name}/generated_tokens", tokens)
        figures.mean(f"{name}/completion_tokens_mean", tokens / len(node.node.completions[agent]))
        for kl in node.reference_kls(agent):
            figures.mean(f"{turn}/reference_kl_mean", kl)
            figures.mean(f"{name}/{turn}/reference_kl_mean", kl)
            if node.return_kl_coef > 0:
                figures.mean(f"{turn}/reference_kl_penalty_mean", node.return_kl_coef * kl)


def add_updates(figures: Figures, updates: Sequence[AgentUpdate]) -> None:
    """Add optimiser steps under ``agent_0/...``."""
    for update in updates:
        name = f"agent_{update.agent}"
        for nodes, stats in update.steps:
            for node in nodes:
                figures.mean(f"{name}/staleness_mean", node.staleness)
                figures.maximum(f"{name}/staleness_max", node.staleness)
            figures.sum(f"{name}/live_nodes", stats.live_nodes)
            figures.sum(f"{name}/dead_nodes", stats.dead_nodes)
            if not stats.stepped:
                continue
            figures.sum(f"{name}/steps", 1)
            figures.sum(f"{name}/trained_tokens", stats.tokens)
            figures.sum(f"{name}/forced_tokens", stats.forced_tokens)
            for figure in (
                "loss",
                "grad_norm",
                "learning_rate",
                "ratio_mean",
                "clip_fraction",
                "truncated_fraction",
                "logprob_gap_mean",
                "entropy",
                "reference_kl_loss",
            ):
                figures.mean(f"{name}/{figure}", getattr(stats, figure))
            figures.maximum(f"{name}/ratio_max", stats.ratio_max)
            figures.maximum(f"{name}/logprob_gap_max", stats.logprob_gap_max)
        if (same_weights := engine_gap(update)) is not None:
            figures.mean(f"{name}/engine_gap_mean", same_weights.logprob_gap_mean)
            figures.maximum(f"{name}/engine_gap_max", same_weights.logprob_gap_max)
            figures.mean(f"{name}/engine_ratio_mean", same_weights.ratio_mean)
            figures.maximum(f"{name}/engine_ratio_max", same_weights.ratio_max)


def add_publications(figures: Figures, publications: Sequence[Publication]) -> None:
    """Add pushes of weights under ``agent_0/...``."""
    for publication in publications:
        name = f"agent_{publication.agent}"
        figures.maximum(f"{name}/weights_version", publication.version)
        figures.sum(f"{name}/push_bytes", publication.nbytes)
        figures.sum(f"{name}/push_seconds", publication.seconds)
        figures.maximum(f"{name}/push_pause_seconds_max", publication.pause_seconds)


def add_seconds(figures: Figures, seconds: Mapping[str, float]) -> None:
    """Add seconds by stage under ``seconds/...``."""
    for stage, value in seconds.items():
        figures.sum(f"seconds/{stage}", value)
