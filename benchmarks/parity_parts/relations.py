"""How CoMLRL's numbers and ours go together: equalities, and the exact relation where they differ.

Pure functions of what both sides wrote down (`comlrl_main`, `our_run.Ran.told`). Every function
yields largest differences by the name of the quantity. n is the number of completions of a group,
k in how many joint actions a completion is, R CoMLRL's returns of one group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.parity_parts.cases import Case
from benchmarks.parity_parts.script import REWARD_FACTOR, child

Told = Mapping[str, Any]
SCALE_FLOOR = 1e-6
DEAD_RANGE = 1e-6
DISCOUNT = 0.5

EQUAL: dict[str, str] = {
    "nodes": "nodes of the tree that only one side has",
    "joint_actions": "joint actions, in number",
    "rewards": "reward of each joint action",
    "node_reward": "mean reward of each node",
    "node_return": "mean return of each node",
    "returns": "return of each completion, aligned",
    "advantages": "advantage, all modes, not normalised, aligned",
    "advantages_normalised": "advantage, `mean`, normalised, aligned and cross",
    "order": "optimiser steps that differ in agent, drain, turn, size or nodes",
}
EVALUATION: dict[str, str] = {
    "evaluation_rewards": "`eval/turn_k/reward_mean`, single paths to the last turn",
    "evaluation_returns": "`eval/turn_k/expected_return` of these, `discount` 1",
}
TRAINING: dict[str, str] = {
    "loss": "loss of each optimiser step, relative to the sum of its terms' sizes",
    "gradient": "gradient of each step at the same weights, importance ratio on at the first: norm "
    "of the difference, relative",
    "weights": "weights after all steps of AdamW",
    "reference_kl": "reference KL of each completion, relative where it is above 1",
    "kl_returns": "return of each completion less its reference KL, aligned",
    "metrics": "`turn_k/reward_mean`, `turn_k/expected_return`, `turn_k/reference_kl_mean`, "
    "`turn_k/reference_kl_penalty_mean`",
    "metric_names": "names of these that only CoMLRL has",
}
RELATIONS: dict[str, tuple[str, str]] = {
    "cross_returns": (
        "return of a completion in `cross`: CoMLRL sums, ours is the mean",
        "R_CoMLRL = G^(N-1) R_ours",
    ),
    "cross_advantages": (
        "its advantage, all modes, not normalised",
        "A_CoMLRL = G^(N-1) A_ours",
    ),
    "rloo_normalised": (
        "`rloo` normalised: CoMLRL divides by the spread of the advantages",
        "A_ours = n / (n - 1) A_CoMLRL",
    ),
    "max_normalised": (
        "`max` normalised: CoMLRL centres again",
        "A_ours = A_CoMLRL - (max R - mean R) / std R",
    ),
    "raw_normalised": (
        "`raw` normalised: CoMLRL centres",
        "A_ours = (A_CoMLRL std R + mean R) / sqrt(std^2 R + mean^2 R)",
    ),
    "discount": (
        f"return of each joint action at `discount` {DISCOUNT}, which CoMLRL leaves out",
        "R_CoMLRL = sum_d D_d and R_ours = sum_d discount^d D_d, D_d the mean reward d turns on",
    ),
    "evaluation_returns_discounted": (
        f"`eval/turn_k/expected_return` at `discount` {DISCOUNT}, which CoMLRL leaves out",
        "R_CoMLRL = sum_d D_d and R_ours = sum_d discount^d D_d, D_d the mean reward of turn k + d",
    ),
    "cross_kl_returns": (
        "return less reference KL in `cross`: CoMLRL takes it off the sum, c is its coefficient",
        "R_CoMLRL = G^(N-1) R_ours + (G^(N-1) - 1) c KL",
    ),
    "dead_nodes": (
        "gradient of a minibatch of m nodes, d of them dead; norm of what is left, relative",
        "g_ours = m / (m - d) g_CoMLRL",
    ),
}


def largest(differences: Iterator[float] | Sequence[float]) -> float:
    """The largest absolute difference, infinite where one is not a number."""
    values = [abs(value) for value in differences]
    if any(math.isnan(value) for value in values):
        return math.inf
    return max(values, default=0.0)


def compare(case: Case, comlrl: Told, ours: Told) -> Iterator[tuple[str, float]]:
    """Differences and residuals of one run of the grid, each with its name."""
    yield "nodes", float(len(set(comlrl["rewards"]) ^ set(ours["rewards"])))
    yield "joint_actions", abs(comlrl["joint_actions"] - ours["joint_actions"])
    yield "rewards", largest(list(_pairs(comlrl["rewards"], ours["rewards"])))
    yield "order", float(_other_steps(comlrl["steps"], ours["steps"], case))
    for agent, node in _sampled(comlrl, ours):
        theirs, our = comlrl["samples"][agent][node], ours["samples"][agent][node]
        yield "node_reward", abs(theirs["mean_reward"] - our["mean_reward"])
        yield "node_return", abs(theirs["mean_return"] - our["mean_return"])
        yield from _group(case, theirs, our)


def _group(case: Case, theirs: Told, our: Told) -> Iterator[tuple[str, float]]:
    k = case.joint_actions_per_completion
    scaled = [value / k for value in theirs["returns"]]
    name = "returns" if k == 1 else "cross_returns"
    yield name, largest(_gaps(scaled, our["returns"]))
    advantages = theirs["advantages"]
    if not case.normalize:
        name = "advantages" if k == 1 else "cross_advantages"
        yield name, largest(_gaps([a / k for a in advantages], our["advantages"]))
        return
    name = "advantages_normalised" if case.mode == "mean" else f"{case.mode}_normalised"
    expected = ours_from_recentred(case.mode, advantages, scaled)
    yield name, largest(_gaps(expected, our["advantages"]))


def ours_from_recentred(
    mode: str, recentred: Sequence[float], returns: Sequence[float]
) -> list[float]:
    """Our normalised advantages from CoMLRL's, which are (R - mean R) / std R in every mode."""
    n, mean = len(returns), fmean(returns)
    spread = math.sqrt(fmean([(value - mean) ** 2 for value in returns]))
    if mode == "mean":
        return list(recentred)
    if mode == "rloo":
        return [a * n / (n - 1) for a in recentred]
    if mode == "max":
        return [a - (max(returns) - mean) / max(spread, SCALE_FLOOR) for a in recentred]
    size = max(math.sqrt(spread**2 + mean**2), SCALE_FLOOR)
    if all(abs(value) <= DEAD_RANGE for value in returns):
        return [0.0] * n
    return [(a * spread + mean) / size for a in recentred]


def compare_discount(comlrl: Told, ours: Told, case: Case) -> Iterator[tuple[str, float]]:
    """Returns at DISCOUNT of every joint action of an aligned run, from CoMLRL's at none."""
    for agent, node in _sampled(comlrl, ours):
        theirs = comlrl["samples"][agent][node]["returns"]
        our = ours["samples"][agent][node]["returns"]
        for g, (plain, discounted) in enumerate(zip(theirs, our, strict=True)):
            later = [
                mean_reward_later(comlrl["rewards"], node, g, turns, case.num_agents)
                for turns in range(case.num_turns)
            ]
            yield "discount", abs(math.fsum(later) - plain)
            weighed = math.fsum(DISCOUNT**turns * d for turns, d in enumerate(later))
            yield "discount", abs(weighed - discounted)


def compare_evaluation(
    case: Case,
    comlrl: Mapping[str, float],
    ours: Mapping[str, float],
    discounted: Mapping[str, float],
) -> Iterator[tuple[str, float]]:
    """Figures of one evaluation along single paths; `discounted` are ours at DISCOUNT."""
    turns = [f"eval/turn_{turn}" for turn in range(1, case.num_turns + 1)]
    rewards = [comlrl[f"{turn}/reward_mean"] for turn in turns]
    for number, turn in enumerate(turns):
        expected = comlrl[f"{turn}/expected_return"]
        yield "evaluation_rewards", abs(rewards[number] - ours[f"{turn}/reward_mean"])
        yield "evaluation_returns", abs(expected - ours[f"{turn}/expected_return"])
        later = rewards[number:]
        yield "evaluation_returns_discounted", abs(math.fsum(later) - expected)
        weighed = math.fsum(DISCOUNT**turns_on * d for turns_on, d in enumerate(later))
        gap = abs(weighed - discounted[f"{turn}/expected_return"])
        yield "evaluation_returns_discounted", gap


def mean_reward_later(
    rewards: Mapping[str, Sequence[float]], node: str, joint: int, turns: int, num_agents: int
) -> float:
    """D_d: the mean reward `turns` turns after a joint action of an aligned tree, 0 beyond it."""
    if turns == 0:
        return REWARD_FACTOR * rewards[node][joint]
    after = child(node, [joint] * num_agents)
    if after not in rewards:
        return 0.0
    return fmean(
        mean_reward_later(rewards, after, j, turns - 1, num_agents)
        for j in range(len(rewards[after]))
    )


def _sampled(comlrl: Told, ours: Told) -> Iterator[tuple[str, str]]:
    for agent, nodes in comlrl["samples"].items():
        for node in nodes:
            if node in ours["samples"].get(agent, {}):
                yield agent, node


def _pairs(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[float]:
    for name in left.keys() & right.keys():
        yield from _gaps(left[name], right[name])


def _gaps(left: Sequence[float], right: Sequence[float]) -> list[float]:
    if len(left) != len(right):
        return [math.inf]
    return [a - b for a, b in zip(left, right, strict=True)]


def _other_steps(theirs: Sequence[Any], ours: Sequence[Any], case: Case) -> int:
    """Steps that differ. Within a drain and turn both shuffle, each with its own key."""
    mine = [list(drained(ours, agent, case)) for agent in range(case.num_agents)]
    other = 0
    for agent in range(case.num_agents):
        drains: dict[tuple[int, int], list[list[str]]] = {}
        for whose, drain, turn, nodes in theirs:
            if whose == agent:
                drains.setdefault((drain, turn), []).append(nodes)
        steps = [
            (turn, [len(nodes) for nodes in groups], sorted(n for nodes in groups for n in nodes))
            for (_, turn), groups in drains.items()
        ]
        other += sum(a != b for a, b in zip(steps, mine[agent], strict=False))
        other += abs(len(steps) - len(mine[agent]))
    return other


def drained(
    steps: Sequence[Any], agent: int, case: Case
) -> Iterator[tuple[int, list[int], list[str]]]:
    """Our steps of one agent by drain and turn: the turn, sizes of minibatches, all their nodes."""
    entered, turn, sizes, names = 0, 0, [], []  # type: ignore[var-annotated]
    for whose, of_turn, nodes in steps:
        if whose != agent:
            continue
        if sizes and (of_turn != turn or entered == case.rollout_buffer_size):
            yield turn, sizes, sorted(names)
            sizes, names = [], []
        if entered == case.rollout_buffer_size:
            entered = 0
        turn = of_turn
        entered += len(nodes)
        sizes, names = [*sizes, len(nodes)], [*names, *nodes]
    if sizes:
        yield turn, sizes, sorted(names)
