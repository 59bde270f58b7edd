"""What the numbers of a run say: buckets, distributions, and later answers against earlier ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

from antiphon.learner.record.report.run_data import Point, TreeRewards

_MOST_VALUES = 12
"""Rewards with at most so many different values get a bar per value."""
_BINS = 20


def buckets(points: Sequence[Point], most: int) -> tuple[list[Point], int]:
    """Means of runs of neighbouring points, so that at most `most` are left.

    Returns:
        The points, and how many each one stands for (the last may stand for fewer).
    """
    size = max(1, math.ceil(len(points) / most))
    parts = [points[i : i + size] for i in range(0, len(points), size)]
    return [(part[-1][0], fmean(y for _, y in part)) for part in parts], size


@dataclass(frozen=True)
class Distribution:
    """Rewards of one turn; `quartiles` are the 25th, 50th and 75th percentiles."""

    turn: int
    count: int
    missing: int
    mean: float
    deviation: float
    smallest: float
    quartiles: tuple[float, float, float]
    largest: float
    shares: tuple[float, ...]
    """Share of the rewards in each bin of `Distributions.bins`."""


@dataclass(frozen=True)
class Distributions:
    """Rewards by turn over the same bins, each with the text that names it."""

    bins: tuple[str, ...]
    turns: tuple[Distribution, ...]


def distributions(trees: Iterable[TreeRewards]) -> Distributions:
    """Distribution of the rewards of every turn, over all joint actions kept."""
    rewards: dict[int, list[float]] = {}
    missing: dict[int, int] = {}
    for tree in trees:
        for path, of_node in tree.rewards.items():
            present = [reward for reward in of_node if reward is not None]
            turn = len(path) + 1
            rewards.setdefault(turn, []).extend(present)
            missing[turn] = missing.get(turn, 0) + len(of_node) - len(present)
    known = {turn: sorted(values) for turn, values in sorted(rewards.items()) if values}
    if not known:
        return Distributions((), ())
    every = sorted({value for values in known.values() for value in values})
    if len(every) <= _MOST_VALUES:
        names = tuple(f"{value:.4g}" for value in every)
        place = {value: index for index, value in enumerate(every)}.__getitem__
    else:
        low, width = every[0], (every[-1] - every[0]) / _BINS
        edges = [low + width * index for index in range(_BINS + 1)]
        names = tuple(f"{a:.3g} to {b:.3g}" for a, b in pairwise(edges))

        def place(value: float) -> int:
            # What lies on an edge belongs above it, whatever rounding says.
            return min(int((value - low) / width + 1e-9), _BINS - 1)

    return Distributions(
        names,
        tuple(
            _distribution(turn, values, missing[turn], [place(value) for value in values], names)
            for turn, values in known.items()
        ),
    )


def _distribution(
    turn: int, ordered: list[float], missing: int, places: list[int], names: Sequence[str]
) -> Distribution:
    counts = Counter(places)
    return Distribution(
        turn=turn,
        count=len(ordered),
        missing=missing,
        mean=fmean(ordered),
        deviation=stdev(ordered) if len(ordered) > 1 else 0.0,
        smallest=ordered[0],
        quartiles=(quantile(ordered, 0.25), quantile(ordered, 0.5), quantile(ordered, 0.75)),
        largest=ordered[-1],
        shares=tuple(counts[index] / len(places) for index in range(len(names))),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the ordered values lie, with linear interpolation."""
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


@dataclass(frozen=True)
class Comparison:
    """Answers of one turn against those of the turn before, branch by branch.

    A branch is a joint action that went on; its later answer is the mean reward of the joint
    actions of its child node.

    Attributes:
        turn: The later turn.
        branches: Number of branches with a reward at both turns.
        better, equal, worse: How many of them scored higher, the same and lower later.
        prompts: Number of trees that hold such branches.
        change: Mean over trees of a tree's mean change.
        interval: 95 % interval of `change`, from the spread between trees; None for one tree.
        first, second: Mean reward of the branches, and of what follows them, over trees in order
            of time: (prompts trained before, mean of the tree).
    """

    turn: int
    branches: int
    better: int
    equal: int
    worse: int
    prompts: int
    change: float
    interval: tuple[float, float] | None
    first: list[Point]
    second: list[Point]


def comparisons(trees: Iterable[TreeRewards]) -> list[Comparison]:
    """Every turn against the one before it."""
    pairs: dict[int, list[tuple[int, list[tuple[float, float]]]]] = {}
    for tree in trees:
        for turn, of_tree in _pairs(tree).items():
            pairs.setdefault(turn, []).append((tree.prompts_before, of_tree))
    return [_comparison(turn, of_turn) for turn, of_turn in sorted(pairs.items())]


def _pairs(tree: TreeRewards) -> dict[int, list[tuple[float, float]]]:
    """Reward of each branch and mean reward of what follows, by the later turn."""
    pairs: dict[int, list[tuple[float, float]]] = {}
    for path, rewards in tree.rewards.items():
        later = [reward for reward in rewards if reward is not None]
        parent = tree.rewards.get(path[:-1]) if path else None
        if parent is None or not later:
            continue
        earlier = parent[path[-1]]
        if earlier is not None:
            pairs.setdefault(len(path) + 1, []).append((earlier, fmean(later)))
    return pairs


def _comparison(turn: int, trees: list[tuple[int, list[tuple[float, float]]]]) -> Comparison:
    changes = [second - first for _, of_tree in trees for first, second in of_tree]
    by_tree = [fmean(second - first for first, second in of_tree) for _, of_tree in trees]
    change = fmean(by_tree)
    half = 1.96 * stdev(by_tree) / math.sqrt(len(by_tree)) if len(by_tree) > 1 else None
    return Comparison(
        turn=turn,
        branches=len(changes),
        better=sum(change > 1e-9 for change in changes),
        equal=sum(abs(change) <= 1e-9 for change in changes),
        worse=sum(change < -1e-9 for change in changes),
        prompts=len(trees),
        change=change,
        interval=None if half is None else (change - half, change + half),
        first=[(float(at), fmean(first for first, _ in of_tree)) for at, of_tree in trees],
        second=[(float(at), fmean(second for _, second in of_tree)) for at, of_tree in trees],
    )
