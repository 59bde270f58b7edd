"""What Prometheus sees of the replicas that the learner asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prometheus_client import Counter, Gauge

SHOWN = 16
"""Replicas of an agent that are told one by one; the others are summed up as "others"."""

_REPLICAS = Gauge(
    "antiphon_learner_replicas",
    "Generation replicas of an agent: those that keep pace, those behind, and those left out.",
    ("agent", "state"),
)
_OUTSTANDING = Gauge(
    "antiphon_learner_replica_outstanding_tokens",
    "Tokens that a replica may still sample of what it was asked for, by its place in the list of "
    f"the agent's replicas, the first {SHOWN} one by one.",
    ("agent", "replica"),
)
DELIVERED = Counter(
    "antiphon_learner_replica_tokens_total",
    "Tokens of completions that a replica delivered first, by its place as above.",
    ("agent", "replica"),
)
CHANGES = Counter(
    "antiphon_learner_replica_changes_total",
    "Replicas that joined, left, drained, were lost, returned, or fell behind.",
    ("agent", "change"),
)
_CHANGES_COUNTED = ("joined", "left", "drained", "lost", "returned", "behind")
CHUNKS_MOVED = Counter(
    "antiphon_learner_chunks_moved_total",
    "Chunks of prompts that another replica was asked for again.",
    ("agent",),
)


class Told(Protocol):
    """What is told of a replica."""

    reachable: bool
    keeps_pace: bool
    outstanding: int


def slot(place: int) -> str:
    """The label of the replica at a place, of few values."""
    return str(place) if place < SHOWN else "others"


def count_from_zero(agent: int) -> None:
    """Have an agent's counters there before the first change, so that the first one is a rise."""
    for change in _CHANGES_COUNTED:
        CHANGES.labels(str(agent), change)
    CHUNKS_MOVED.labels(str(agent))


def tell_replicas(agent: int, replicas: Sequence[Told]) -> None:
    """Tell how an agent's replicas are."""
    label = str(agent)
    states = {"serving": 0, "behind": 0, "left_out": 0}
    outstanding = dict.fromkeys((slot(place) for place in range(SHOWN + 1)), 0)
    for place, replica in enumerate(replicas):
        kept = "serving" if replica.keeps_pace else "behind"
        states[kept if replica.reachable else "left_out"] += 1
        outstanding[slot(place)] += replica.outstanding
    for state, count in states.items():
        _REPLICAS.labels(label, state).set(count)
    for name, tokens in outstanding.items():
        _OUTSTANDING.labels(label, name).set(tokens)
