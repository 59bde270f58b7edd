"""Grows one tree per task, breadth first by turn.

At each turn the whole frontier (all nodes of all tasks of the rollout batch, in tree order) of a
policy is one batch; policies run side by side. A policy plays one agent, or several
(`shared_policy`). As soon as all completions of a node are there its
joint actions are scored and its branches continued, while other nodes still generate. The children
that the transition opens are the frontier of the next turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from antiphon.clients.types import (
    AgentAction,
    BranchEnd,
    Chat,
    Completion,
    JointAction,
    Phase,
    Prompt,
    PromptSamples,
    Score,
    ScoredJointAction,
    Task,
    TokenIds,
    TransitionResult,
)
from antiphon.learner.concurrency import task_group
from antiphon.learner.data.chats import shown
from antiphon.learner.data.tasks import Row
from antiphon.learner.record.stages import GENERATE, SCORE, TRANSITION, StageClock
from antiphon.learner.rollout.fit import misfit
from antiphon.learner.rollout.tree import (
    AgentPrompt,
    Branch,
    BranchStop,
    Node,
    Path,
    joint_indices,
)

OnTurn = Callable[[int, int, str], None]
History = tuple[tuple[AgentAction, ...], ...]


class Generator(Protocol):
    """Samples the completions of one policy."""

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together."""
        ...

    async def generate(
        self, prompts: Sequence[PromptSamples], deliver: Callable[[Completion], None]
    ) -> None:
        """Hand every completion to `deliver` as it ends; returns once all are delivered."""
        ...


class Scorer(Protocol):
    """Scores joint actions."""

    async def score(
        self, task: Task, joint_actions: Sequence[JointAction]
    ) -> list[tuple[Score, float | None]]:
        """What the reward service said and the reward to train on, in the order asked."""
        ...


class Transitioner(Protocol):
    """Writes the prompts of the next turn."""

    async def transition(
        self, task: Task, scored: Sequence[ScoredJointAction]
    ) -> list[TransitionResult]:
        """What follows each joint action, in the order asked."""
        ...


class PromptWriter(Protocol):
    """Formats and tokenises what agents are asked, one prompt per agent."""

    async def first(self, task: Task) -> tuple[AgentPrompt, ...]:
        """The prompts of turn 1."""
        ...

    async def following(
        self, node: Node, samples: Sequence[int], prompts: Sequence[str | Chat]
    ) -> tuple[AgentPrompt, ...]:
        """The prompts of the turn after `node`, from those that the transition wrote.

        `samples` are the completions of the joint action that is followed, one per agent.
        """
        ...


class Actions(Protocol):
    """Makes of a node's completions what reward and transition see."""

    async def actions(self, node: Node) -> list[tuple[AgentAction, ...]]:
        """The actions of each joint action, in order of joint action."""
        ...


class SeedOf(Protocol):
    """The seed of one completion."""

    def __call__(self, *, epoch: int, row: int, path: Path, agent: int, sample: int) -> int:
        """A number in [0, 2^64)."""
        ...


@dataclass(frozen=True)
class RolloutShape:
    """How a tree grows.

    `policies` are the agents that each policy plays; none says that each agent has its own.
    """

    num_agents: int
    num_generations: int
    num_turns: int
    joint_mode: str
    early_termination_threshold: float | None
    max_new_tokens: int
    policies: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Grown:
    """What a rollout batch came to.

    `roots` are the trees in order of task; `skipped` holds the tasks whose first prompt does not
    fit the context (row, why), which have no tree.
    """

    roots: list[Node]
    skipped: list[tuple[int, str]] = field(default_factory=list)

    @property
    def stops(self) -> Counter[BranchStop]:
        """Branches without a child, by why; a skipped task counts as one truncated branch."""
        stops: Counter[BranchStop] = Counter()
        for root in self.roots:
            for node in root.walk():
                stops.update(b.stop for b in node.branches if b.stop is not None)
        if self.skipped:
            stops[BranchStop.TRUNCATED] += len(self.skipped)
        return stops


@dataclass
class _Open:
    """A node whose completions are arriving; `slots` has shape [N][G]."""

    node: Node
    history: History
    slots: list[list[Completion | None]]
    children: list[_Open] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return all(completion is not None for row in self.slots for completion in row)


class Rollout:
    """Grows the trees of rollout batches.

    Args:
        shape: How trees grow.
        generators: One per policy, policy 0 first.
        scorer: Scores joint actions.
        transitioner: Writes later prompts; None where there is one turn only.
        prompts: Formats and tokenises prompts.
        seed_of: The seed of each completion.
        clock: Told where the time goes.
        on_turn: Told the epoch, the turn and a task's prompt whenever a turn begins.
        phase: What the joint actions are for.
        actions: Splits joint completions into the roles' actions; None where each agent acts.
        as_text: Policies whose engines take text only and encode it themselves.
    """

    def __init__(
        self,
        shape: RolloutShape,
        *,
        generators: Sequence[Generator],
        scorer: Scorer,
        transitioner: Transitioner | None,
        prompts: PromptWriter,
        seed_of: SeedOf,
        clock: StageClock,
        on_turn: OnTurn | None = None,
        phase: Phase = Phase.TRAIN,
        actions: Actions | None = None,
        as_text: Collection[int] = (),
    ) -> None:
        self._shape = shape
        self._policies = shape.policies or tuple((agent,) for agent in range(shape.num_agents))
        self._generators = generators
        self._generator_of = {
            agent: generator
            for agents, generator in zip(self._policies, generators, strict=True)
            for agent in agents
        }
        self._scorer = scorer
        self._transitioner = transitioner
        self._prompts = prompts
        self._seed_of = seed_of
        self._clock = clock
        self._on_turn = on_turn
        self._phase = phase
        self._split = actions
        self._as_text = frozenset(as_text)
        self._indices = joint_indices(shape.joint_mode, shape.num_agents, shape.num_generations)

    async def grow(self, epoch: int, rows: Sequence[Row]) -> Grown:
        """Grow the trees of a rollout batch.

        Args:
            epoch: Counted from 1.
            rows: The task of each tree.

        Raises:
            CallError: A call failed for good.
            ContractError: A service's answer breaks the contract.
        """
        grown = Grown(roots=[])
        frontier: list[_Open] = []
        for row in rows:
            prompts = await self._prompts.first(row.task)
            if detail := self._misfit(prompts):
                grown.skipped.append((row.row, detail))
                continue
            root = self._open(Node(row.task, row.row, path=(), turn=1, prompts=prompts), ())
            grown.roots.append(root.node)
            frontier.append(root)
        while frontier:
            await self._grow_turn(epoch, frontier)
            frontier = [child for opened in frontier for child in opened.children]
        return grown

    async def _grow_turn(self, epoch: int, frontier: Sequence[_Open]) -> None:
        if self._on_turn is not None:
            first = frontier[0].node
            self._on_turn(epoch, first.turn, shown(first.task.item.get("prompt", first.task.id)))
        async with task_group() as group:
            for policy in range(len(self._policies)):
                group.create_task(self._generate(policy, epoch, frontier, group))

    async def _generate(
        self, policy: int, epoch: int, frontier: Sequence[_Open], group: asyncio.TaskGroup
    ) -> None:
        """One batch: node after node, and within a node the policy's agents ascending."""
        places = [(opened, agent) for opened in frontier for agent in self._policies[policy]]

        def deliver(completion: Completion) -> None:
            opened, agent = places[completion.prompt_index]
            opened.slots[agent][completion.sample_index] = completion
            if opened.complete:
                group.create_task(self._finish(epoch, opened))

        batch = [
            PromptSamples(
                self._sent(policy, opened.node.prompts[agent]),
                tuple(
                    self._seed_of(
                        epoch=epoch,
                        row=opened.node.row,
                        path=opened.node.path,
                        agent=agent,
                        sample=sample,
                    )
                    for sample in range(self._shape.num_generations)
                ),
            )
            for opened, agent in places
        ]
        with self._clock.measure(GENERATE):
            await self._generators[policy].generate(batch, deliver)

    def _sent(self, policy: int, prompt: AgentPrompt) -> Prompt:
        return prompt.plain if policy in self._as_text else TokenIds(prompt.token_ids)

    def _take_encoded(self, node: Node) -> None:
        """What is trained are the prompt's ids as the engine made them of the text."""
        agents = {agent for policy in self._as_text for agent in self._policies[policy]}
        node.prompts = tuple(
            replace(prompt, token_ids=node.completions[agent][0].prompt_token_ids)
            if agent in agents
            else prompt
            for agent, prompt in enumerate(node.prompts)
        )

    async def _finish(self, epoch: int, opened: _Open) -> None:
        """Score a node whose completions are all there, and open its children."""
        node = opened.node
        node.completions = tuple(
            tuple(completion for completion in row if completion is not None)
            for row in opened.slots
        )
        self._take_encoded(node)
        if self._split is None:
            acted = [_agent_actions(node, samples) for samples in self._indices]
        else:
            acted = await self._split.actions(node)
        actions = [self._joint_action(epoch, opened, index, one) for index, one in enumerate(acted)]
        with self._clock.measure(SCORE):
            scored = await self._scorer.score(node.task, actions)
        node.branches = [
            Branch(samples, action.id, score, reward)
            for samples, action, (score, reward) in zip(self._indices, actions, scored, strict=True)
        ]
        if self._split is not None:
            for branch, action in zip(node.branches, actions, strict=True):
                branch.role_texts = tuple(one.completion for one in action.actions)
        going_on = self._going_on(node)
        if going_on and self._transitioner is not None:
            asked = [ScoredJointAction(actions[j], scored[j][0]) for j in going_on]
            with self._clock.measure(TRANSITION):
                results = await self._transitioner.transition(node.task, asked)
            for index, result in zip(going_on, results, strict=True):
                await self._continue(opened, index, actions[index], result)

    def _going_on(self, node: Node) -> list[int]:
        """Joint actions that go to the transition; the others are given their stop."""
        mean, threshold = node.mean_reward, self._shape.early_termination_threshold
        going_on = []
        for index, branch in enumerate(node.branches):
            if node.turn >= self._shape.num_turns:
                branch.stop = BranchStop.LAST_TURN
            elif mean is None or branch.reward is None:
                branch.stop = BranchStop.UNSCORED
            elif threshold is not None and mean > threshold:
                branch.stop = BranchStop.EARLY_TERMINATION
            else:
                going_on.append(index)
        return going_on

    async def _continue(
        self, opened: _Open, index: int, action: JointAction, result: TransitionResult
    ) -> None:
        node, branch = opened.node, opened.node.branches[index]
        if isinstance(result.outcome, BranchEnd):
            branch.stop, branch.stop_detail = BranchStop.TRANSITION, result.outcome.reason
            return
        prompts = await self._prompts.following(node, branch.samples, result.outcome.prompts)
        if detail := self._misfit(prompts):
            branch.stop, branch.stop_detail = BranchStop.TRUNCATED, detail
            return
        branch.child = Node(node.task, node.row, (*node.path, index), node.turn + 1, prompts)
        opened.children.append(self._open(branch.child, (*opened.history, action.actions)))

    def _joint_action(
        self, epoch: int, opened: _Open, index: int, actions: tuple[AgentAction, ...]
    ) -> JointAction:
        node = opened.node
        return JointAction(
            id=joint_action_id(self._phase, epoch, node.row, node.path, index),
            task_id=node.task.id,
            turn=node.turn,
            phase=self._phase,
            attempt=1,
            actions=actions,
            history=opened.history,
        )

    def _open(self, node: Node, history: History) -> _Open:
        agents, samples = self._shape.num_agents, self._shape.num_generations
        return _Open(node, history, [[None] * samples for _ in range(agents)])

    def _misfit(self, prompts: Sequence[AgentPrompt]) -> str:
        """Why these prompts do not fit the context; empty where they do."""
        for agent, prompt in enumerate(prompts):
            detail = misfit(
                agent,
                len(prompt.token_ids),
                self._shape.max_new_tokens,
                self._generator_of[agent].context_length,
            )
            if detail:
                return detail
        return ""


def _agent_actions(node: Node, samples: Sequence[int]) -> tuple[AgentAction, ...]:
    return tuple(
        AgentAction(node.prompts[agent].content, node.completions[agent][sample].text)
        for agent, sample in enumerate(samples)
    )


def joint_action_id(phase: Phase, epoch: int, row: int, path: Path, index: int) -> str:
    """The joint action's name, the same whenever the same place of the run is reached again."""
    return f"{phase}/{epoch}/{row}/{'.'.join(map(str, (*path, index)))}"
