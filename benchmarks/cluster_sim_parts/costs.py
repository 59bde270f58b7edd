"""What things cost, in seconds and bytes, and what is trained: all that the model is told.

Nothing here says where a number comes from. `measure` takes them of this machine, `hardware`
calculates them for GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

Fanout = Literal["each", "tree", "store"]
"""The learner sends to every replica; to a few, which pass it on; to a storage that all read."""


@dataclass(frozen=True, kw_only=True)
class EngineCosts:
    """One generation replica.

    A decode step of B rows with K tokens of context between them takes

        step_seconds + max(read_seconds, B row_seconds) + K context_seconds

    Attributes:
        step_seconds: Of every step, whatever is in it.
        read_seconds: Reading the weights, which the products of few rows hide behind.
        row_seconds: Products of one row.
        context_seconds: Reading one token of the key-value cache.
        prompt_seconds: Prefill of a prompt's token; each distinct prompt once per request.
        places: Most rows at once.
        join_share: The share of the places that must be free before waiting rows join; 1 for a
            batch that ends before the next one begins.
        exclusive: One request after another; else rows of all requests share the places.
    """

    step_seconds: float = 0.0
    read_seconds: float = 0.0
    row_seconds: float = 0.0
    context_seconds: float = 0.0
    prompt_seconds: float = 0.0
    places: int = 64
    join_share: float = 0.0
    exclusive: bool = False

    def step(self, rows: int, context: float) -> float:
        """Seconds of one decode step."""
        products = max(self.read_seconds, rows * self.row_seconds)
        return self.step_seconds + products + context * self.context_seconds


@dataclass(frozen=True, kw_only=True)
class ProcessCosts:
    """Processor seconds of the learner's one event loop, or of a service, beside the real work.

    Attributes:
        per_step: Of a rollout batch, whatever is in it.
        per_call: Of a Generate call to one replica.
        per_completion: Of one completion: message, check, place in the tree, record.
        per_token: Of each of its tokens.
        per_node: Of a node: its Score and Transition calls, its prompts and samples.
        per_push: Of a PushWeights call to one replica, its bytes aside.
    """

    per_step: float = 0.0
    per_call: float = 0.0
    per_completion: float = 0.0
    per_token: float = 0.0
    per_node: float = 0.0
    per_push: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PushCosts:
    """How new weights reach the replicas.

    Attributes:
        nbytes: What is sent of one agent's weights.
        encode_seconds: Finding and encoding it, of one agent.
        link: Bytes/s that leave the learner, all agents together.
        replica_link: Bytes/s into (and out of) one replica.
        apply_seconds: In which a replica cannot sample, the bytes being there.
        fanout: Who sends to whom.
        children: Replicas that the learner, and each replica, sends to in a tree.
        chunk: Bytes that a replica must have before it passes them on.
        hop_seconds: Of a chunk from one replica to the next, its bytes aside.
        store_link: Bytes/s that the storage gives to all its readers together.
    """

    nbytes: float = 0.0
    encode_seconds: float = 0.0
    link: float = math.inf
    replica_link: float = math.inf
    apply_seconds: float = 0.0
    fanout: Fanout = "each"
    children: int = 2
    chunk: float = float(1 << 20)
    hop_seconds: float = 0.0
    store_link: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Costs:
    """All constants of a cluster.

    Attributes:
        engine: Of every replica.
        learner: Of the learner's event loop.
        service: Of a generation service's.
        push: Of publishing.
        cores: Shared by the learner's event loop, one at a time, and all services beside their
            engines; infinite on machines of their own.
        score_seconds: Of the reward service for one node, any number at once.
        transition_seconds: Of the transition service for one node.
        on_swap: Whether new weights wait for the completions that are under way.
    """

    engine: EngineCosts
    learner: ProcessCosts = field(default_factory=ProcessCosts)
    service: ProcessCosts = field(default_factory=ProcessCosts)
    push: PushCosts = field(default_factory=PushCosts)
    cores: float = math.inf
    score_seconds: float = 0.0
    transition_seconds: float = 0.0
    on_swap: Literal["finish", "continue"] = "finish"


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is trained, and on how many replicas.

    Attributes:
        steps: Rollout batches that are measured, after `warm` others.
        warm: Rollout batches at the beginning that are not.
        tasks: Tasks of a rollout batch.
        turns: Of a tree.
        generations: Completions of a node and agent.
        branches: Children of a node: `generations` where joint actions are aligned and none ends.
        tokens: The longest completion.
        shortest: The shortest, as a share of `tokens`; lengths lie evenly between.
        prompt_tokens: Of a prompt of the first turn.
        turn_tokens: What a prompt grows by with each turn.
        agents: How many.
        replicas: Of each agent.
        slow: How many times slower some replicas of each agent are, by number.
        staleness: `max_staleness`.
        update_seconds: Of one agent's update from one rollout batch.
        side_by_side: Agents are updated at the same time; else one after another.
        balance: `chunks`: a turn's prompts are cut into chunks that fit a replica, each goes to
            whoever has room and the least to do. `shares`: an equal share for each replica.
    """

    steps: int = 4
    warm: int = 2
    tasks: int = 1
    turns: int = 1
    generations: int = 4
    branches: int | None = None
    tokens: int = 256
    shortest: float = 1.0
    prompt_tokens: int = 0
    turn_tokens: int = 0
    agents: int = 1
    replicas: int = 1
    slow: dict[int, float] = field(default_factory=dict)
    staleness: int = 0
    update_seconds: float = 0.0
    side_by_side: bool = True
    balance: Literal["chunks", "shares"] = "chunks"

    @property
    def nodes(self) -> list[int]:
        """Nodes of each turn of a rollout batch."""
        branches = self.generations if self.branches is None else self.branches
        return [self.tasks * branches**turn for turn in range(self.turns)]
