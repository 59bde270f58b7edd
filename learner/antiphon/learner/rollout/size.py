"""How large a run is: nodes, joint actions, completions and tokens of a task's tree.

With B joint actions per node (`aligned` B = G, `cross` B = G^N) a tree that nothing ends early has

    nodes of turn t          B^(t-1)
    joint actions of turn t  B^t
    completions of turn t    N * G * B^(t-1)
    tokens of turn t         completions * max_new_tokens

at most. At least it has its root: every branch may end after the first turn.

The most optimiser steps come of those trees too: with early ends or dead groups there are fewer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from antiphon.learner.config.magrpo import MAGRPOConfig

MOST_WALKED = 1_000_000
"""Nodes of the largest tree whose drains are counted one by one."""


@dataclass(frozen=True)
class TreeSize:
    """What is generated and scored; `tokens` are the most that the completions can have."""

    nodes: int
    joint_actions: int
    completions: int
    tokens: int

    def __add__(self, other: TreeSize) -> TreeSize:
        return TreeSize(
            self.nodes + other.nodes,
            self.joint_actions + other.joint_actions,
            self.completions + other.completions,
            self.tokens + other.tokens,
        )

    def __mul__(self, times: int) -> TreeSize:
        return TreeSize(
            self.nodes * times,
            self.joint_actions * times,
            self.completions * times,
            self.tokens * times,
        )


@dataclass(frozen=True)
class RunSize:
    """Sizes of a run. Epoch and run are None where the dataset does not know its length."""

    turns: tuple[TreeSize, ...]
    least_per_prompt: TreeSize
    most_per_prompt: TreeSize
    most_per_epoch: TreeSize | None
    most_per_run: TreeSize | None


def joint_actions_per_node(config: MAGRPOConfig, num_agents: int) -> int:
    """Joint actions that a node has: G, or G^N where `joint_mode` is ``cross``."""
    return int(config.num_generations ** (num_agents if config.joint_mode == "cross" else 1))


def run_size(config: MAGRPOConfig, num_agents: int, num_prompts: int | None) -> RunSize:
    """Work out the sizes of a run.

    Args:
        config: The settings.
        num_agents: Number of agents, N.
        num_prompts: Rows of the dataset, None where unknown.
    """
    branching = joint_actions_per_node(config, num_agents)
    turns = []
    for turn in range(1, config.num_turns + 1):
        nodes = branching ** (turn - 1)
        completions = num_agents * config.num_generations * nodes
        turns.append(
            TreeSize(nodes, nodes * branching, completions, completions * config.max_new_tokens)
        )
    most = sum(turns[1:], start=turns[0])
    epoch = None if num_prompts is None else most * num_prompts
    return RunSize(
        turns=tuple(turns),
        least_per_prompt=turns[0],
        most_per_prompt=most,
        most_per_epoch=epoch,
        most_per_run=None if epoch is None else epoch * config.num_train_epochs,
    )


def most_optimizer_steps(
    config: MAGRPOConfig, num_agents: int, num_prompts: int, *, sharing: int = 1
) -> int:
    """Optimiser steps of a policy in a run where no branch ends early and no group is dead.

    Of trees with more than `MOST_WALKED` nodes an upper bound: every drain has every turn in it,
    each with a minibatch that is not full.

    Args:
        config: The settings.
        num_agents: Number of agents, N.
        num_prompts: Rows of the dataset.
        sharing: Agents that the policy plays; each brings every node.
    """
    branching = joint_actions_per_node(config, num_agents)
    nodes = sum(branching**turn for turn in range(config.num_turns)) * sharing
    if nodes > MOST_WALKED:
        return _step_bound(config, nodes * num_prompts) * config.num_train_epochs
    turns = [turn for turn in _turns(branching, config.num_turns) for _ in range(sharing)]
    size, entries = config.rollout_buffer_size, len(turns) * num_prompts
    drains = math.ceil(entries / size)
    # Drains recur once both the buffers and the trees are used up.
    period = len(turns) // math.gcd(len(turns), size)
    full = [
        _steps(config, [turns[(drain * size + entry) % len(turns)] for entry in range(size)])
        for drain in range(min(period, entries // size))
    ]
    steps = sum(full) * (entries // size // period) if full else 0
    steps += sum(full[: entries // size % period])
    if drains > entries // size:
        first = (drains - 1) * size
        steps += _steps(config, [turns[entry % len(turns)] for entry in range(first, entries)])
    return steps * config.num_train_epochs


def _step_bound(config: MAGRPOConfig, entries: int) -> int:
    """At most so many optimiser steps come of these nodes of one epoch."""
    size = config.rollout_buffer_size
    minibatches = min(size, -(-size // config.minibatch_size) + config.num_turns - 1)
    return -(-entries // size) * -(-minibatches // config.gradient_accumulation_steps)


def _turns(branching: int, num_turns: int, turn: int = 1) -> Iterator[int]:
    """The turn of every node of a whole tree, in pre-order."""
    yield turn
    if turn < num_turns:
        for _ in range(branching):
            yield from _turns(branching, num_turns, turn + 1)


def _steps(config: MAGRPOConfig, turns: list[int]) -> int:
    """Optimiser steps of a drain whose nodes are of these turns."""
    of_turn = Counter(turns).values()
    minibatches = sum(math.ceil(nodes / config.minibatch_size) for nodes in of_turn)
    return math.ceil(minibatches / config.gradient_accumulation_steps)
