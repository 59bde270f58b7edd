"""The tree that one task grows into (MAGRPO, arXiv 2508.04652, over several turns).

A node is one turn at one point of the tree: per agent one prompt and G completions. A branch is
one joint action of a node:

    aligned    the g-th completions of all agents together    G joint actions
    cross      the product of the agents' completions         G^N of them, last agent fastest

The reward of joint action j is r_j; a joint action without a finite reward is missing, and every
mean here is over those that have one. A branch that goes on holds the node of the next turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from statistics import fmean

from antiphon.clients.types import Chat, Completion, FieldError, Score, Task

Path = tuple[int, ...]


class JointMode(StrEnum):
    """How the agents' completions at a node are put together."""

    ALIGNED = "aligned"
    CROSS = "cross"


class BranchStop(StrEnum):
    """Why a branch has no child node."""

    LAST_TURN = "last_turn"
    EARLY_TERMINATION = "early_termination"
    UNSCORED = "unscored"
    TRANSITION = "transition"
    TRUNCATED = "truncated"


@dataclass(frozen=True)
class AgentPrompt:
    """What one agent was asked: as user functions see it, and the ids that the engine saw [P].

    `plain` is what an engine that takes text only is sent: text, or the whole chat; empty where a
    conversation was appended to, which has no other form than the ids.
    `roles` holds the prompts of the roles that a joint prompt is made of (`learner.centralized`).
    `chat` says that the ids are those of a chat template, which a text may have been put under.
    """

    content: str | Chat
    token_ids: tuple[int, ...]
    roles: tuple[str | Chat, ...] = ()
    chat: bool = False
    plain: str | Chat = ""


@dataclass(frozen=True)
class ReferenceTerm:
    """What the reference policy (`antiphon.learner.policy.reference`) says of C tokens.

    `kl` is the k3 estimate summed over its tokens, `logprobs` [C] the reference's own, under the
    full softmax at temperature 1.
    """

    kl: float
    logprobs: tuple[float, ...]


@dataclass
class Branch:
    """One joint action of a node.

    `samples` holds a completion index per agent [N]; `reward` is the score's value after the
    reward processor, None where it is missing; `stop` says why there is no `child`. `role_texts`
    are the parts that a joint completion was split into, where one model plays all roles.
    """

    samples: tuple[int, ...]
    joint_action_id: str
    score: Score | None = None
    reward: float | None = None
    child: Node | None = None
    stop: BranchStop | None = None
    stop_detail: str = ""
    role_texts: tuple[str, ...] = ()

    @property
    def finite_reward(self) -> float | None:
        """The reward, None where it is missing or not finite."""
        return self.reward if self.reward is not None and math.isfinite(self.reward) else None


@dataclass
class Node:
    """One turn at one point of the tree of a task.

    `path` holds the joint action taken at each turn before (the root's is empty), `row` the row of
    the dataset. `prompts` has shape [N], `completions` [N][G], and `references` too where a
    reference policy is held, else it is empty. `unsplit` counts joint completions that could not be
    split into the roles' texts.
    """

    task: Task
    row: int
    path: Path
    turn: int
    prompts: tuple[AgentPrompt, ...]
    completions: tuple[tuple[Completion, ...], ...] = ()
    branches: list[Branch] = field(default_factory=list)
    references: tuple[tuple[ReferenceTerm, ...], ...] = ()
    unsplit: int = 0

    @property
    def mean_reward(self) -> float | None:
        """Mean over the joint actions that have a reward, None where none has."""
        rewards = [r for branch in self.branches if (r := branch.finite_reward) is not None]
        return fmean(rewards) if rewards else None

    def walk(self) -> Iterator[Node]:
        """This node, then each child's walk in order of joint action (pre-order)."""
        yield self
        for branch in self.branches:
            if branch.child is not None:
                yield from branch.child.walk()


def joint_indices(mode: str, num_agents: int, num_generations: int) -> list[tuple[int, ...]]:
    """Completion index per agent of every joint action, in order of joint action.

    Raises:
        FieldError: `mode` is not one of JointMode, or a count is below 1.
    """
    for name, count in (("num_agents", num_agents), ("num_generations", num_generations)):
        if count < 1:
            raise FieldError(name, count, "1 or more")
    if mode == JointMode.ALIGNED:
        return [(g,) * num_agents for g in range(num_generations)]
    if mode == JointMode.CROSS:
        return list(product(range(num_generations), repeat=num_agents))
    raise FieldError("joint_mode", repr(mode), " or ".join(repr(m.value) for m in JointMode))
