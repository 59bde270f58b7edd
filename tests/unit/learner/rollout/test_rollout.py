"""Trees grow breadth first, in tree order, and stop where they must."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from antiphon.clients.types import (
    AgentAction,
    BranchEnd,
    Completion,
    FinishReason,
    JointAction,
    NextPrompts,
    Phase,
    PromptSamples,
    Score,
    ScoredJointAction,
    Task,
    TokenIds,
    TransitionResult,
    WeightsSpan,
)
from antiphon.learner.data.tasks import Row
from antiphon.learner.record.stages import StageClock
from antiphon.learner.rollout.rollout import Actions, Rollout, RolloutShape
from antiphon.learner.rollout.tree import AgentPrompt, BranchStop, Node


def completion(
    agent: int, batch: int, index: int, sample: int, prompt: PromptSamples
) -> Completion:
    """Completion number `sample` of the `index`-th prompt of an agent's `batch`-th batch."""
    # A text is encoded by the engine, which has a way of its own.
    ids = prompt.prompt.ids if isinstance(prompt.prompt, TokenIds) else (9, len(prompt.prompt))
    return Completion(
        prompt_index=index,
        sample_index=sample,
        text=f"a{agent}b{batch}p{index}s{sample}",
        token_ids=(7, 2),
        logprobs=(-0.5, -0.1),
        kept_sizes=(3, 3),
        finish_reason=FinishReason.END_TOKEN,
        prompt_token_ids=ids,
        weights_spans=(WeightsSpan(0, 1),),
        instance_id="i",
        boot_id="b",
    )


@dataclass
class Choir:
    """One agent that answers at once; `gate` holds back prompts from index 1 on."""

    agent: int
    context_length: int = 100
    gate: asyncio.Event | None = None
    batches: list[list[PromptSamples]] = field(default_factory=list)

    async def generate(
        self, prompts: Sequence[PromptSamples], deliver: Callable[[Completion], None]
    ) -> None:
        self.batches.append(list(prompts))
        for index, prompt in enumerate(prompts):
            if index == 1 and self.gate is not None:
                await self.gate.wait()
            for sample in range(len(prompt.seeds)):
                deliver(completion(self.agent, len(self.batches), index, sample, prompt))


@dataclass
class Judge:
    """Rewards by joint action id; 0 where none is given, missing where it is None."""

    rewards: dict[str, float | None] = field(default_factory=dict)
    seen: list[JointAction] = field(default_factory=list)
    called: Callable[[str], None] = lambda task: None

    async def score(
        self, task: Task, joint_actions: Sequence[JointAction]
    ) -> list[tuple[Score, float | None]]:
        self.seen += joint_actions
        self.called(task.id)
        values = [self.rewards.get(action.id, 0.0) for action in joint_actions]
        return [
            (Score(action.id, value, None if value is not None else "none"), value)
            for action, value in zip(joint_actions, values, strict=True)
        ]


@dataclass
class Coach:
    """Writes the next prompts; ends branches whose id is in `ends`."""

    ends: set[str] = field(default_factory=set)
    words: dict[str, str] = field(default_factory=dict)
    asked: list[ScoredJointAction] = field(default_factory=list)

    async def transition(
        self, task: Task, scored: Sequence[ScoredJointAction]
    ) -> list[TransitionResult]:
        self.asked += scored
        return [self._result(item) for item in scored]

    def _result(self, item: ScoredJointAction) -> TransitionResult:
        id_ = item.joint_action.id
        if id_ in self.ends:
            return TransitionResult(id_, BranchEnd("solved"))
        word = self.words.get(id_, "again")
        prompts = tuple(f"{word} {id_} {agent}" for agent in range(len(item.joint_action.actions)))
        return TransitionResult(id_, NextPrompts(prompts))


class Words:
    """One token per word; the formatter puts the agent in front."""

    def __init__(self, num_agents: int) -> None:
        self.num_agents = num_agents

    async def first(self, task: Task) -> tuple[AgentPrompt, ...]:
        return self._made([f"[{agent}] {task.item['prompt']}" for agent in range(self.num_agents)])

    async def following(
        self,
        node: Node,
        samples: Sequence[int],
        prompts: Sequence[object],
    ) -> tuple[AgentPrompt, ...]:
        return self._made([f"[{agent}] {prompt}" for agent, prompt in enumerate(prompts)])

    def _made(self, texts: list[str]) -> tuple[AgentPrompt, ...]:
        return tuple(AgentPrompt(t, tuple(map(len, t.split())), plain=t) for t in texts)


def seed_of(*, epoch: int, row: int, path: tuple[int, ...], agent: int, sample: int) -> int:
    return hash((epoch, row, path, agent, sample)) % 2**64


@dataclass
class Stage:
    """Everything a rollout needs, replaceable one by one."""

    num_agents: int = 2
    num_generations: int = 2
    num_turns: int = 2
    joint_mode: str = "aligned"
    threshold: float | None = None
    max_new_tokens: int = 4
    judge: Judge = field(default_factory=Judge)
    coach: Coach = field(default_factory=Coach)
    choirs: list[Choir] = field(default_factory=list)
    policies: tuple[tuple[int, ...], ...] = ()
    actions: Actions | None = None
    words: Words | None = None
    as_text: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        choirs = len(self.policies) or self.num_agents
        self.choirs = self.choirs or [Choir(agent) for agent in range(choirs)]

    def rollout(self) -> Rollout:
        return Rollout(
            RolloutShape(
                self.num_agents,
                self.num_generations,
                self.num_turns,
                self.joint_mode,
                self.threshold,
                self.max_new_tokens,
                self.policies,
            ),
            generators=self.choirs,
            scorer=self.judge,
            transitioner=self.coach,
            prompts=self.words or Words(self.num_agents),
            seed_of=seed_of,
            clock=StageClock(),
            actions=self.actions,
            as_text=self.as_text,
        )


def rows(*prompts: str) -> list[Row]:
    return [Row(i, Task(f"row-{i}", {"prompt": prompt})) for i, prompt in enumerate(prompts)]


def paths(root: Node) -> list[tuple[int, ...]]:
    return [node.path for node in root.walk()]


async def test_the_whole_frontier_is_one_batch_per_agent_and_turn_in_tree_order() -> None:
    stage = Stage(num_turns=3)
    grown = await stage.rollout().grow(1, rows("x", "y"))
    assert [paths(root) for root in grown.roots] == [
        [(), (0,), (0, 0), (0, 1), (1,), (1, 0), (1, 1)]
    ] * 2
    for choir in stage.choirs:
        assert [len(batch) for batch in choir.batches] == [2, 4, 8]
        expected = [(row, path) for row in (0, 1) for path in [(0, 0), (0, 1), (1, 0), (1, 1)]]
        assert [prompt.seeds for prompt in choir.batches[2]] == [
            tuple(seed_of(epoch=1, row=row, path=path, agent=choir.agent, sample=s) for s in (0, 1))
            for row, path in expected
        ]


async def test_prompts_go_as_the_token_ids_of_what_the_formatter_wrote() -> None:
    stage = Stage(num_turns=1)
    await stage.rollout().grow(1, rows("three more words"))
    assert stage.choirs[1].batches[0][0].prompt == TokenIds((3, 5, 4, 5))


async def test_an_engine_that_takes_text_is_sent_it_and_its_ids_are_those_of_the_node() -> None:
    """L13: what is trained is what the engine says that it saw."""
    stage = Stage(num_turns=1, as_text=(1,))
    (root,) = (await stage.rollout().grow(1, rows("three more words"))).roots
    assert isinstance(stage.choirs[0].batches[0][0].prompt, TokenIds)
    sent = stage.choirs[1].batches[0][0].prompt
    assert sent == root.prompts[1].content == root.prompts[1].plain
    assert root.prompts[1].token_ids == (9, len(sent))
    assert root.prompts[0].token_ids == stage.choirs[0].batches[0][0].prompt.ids


async def test_completions_of_aligned_joint_actions_stand_where_they_belong() -> None:
    stage = Stage(num_turns=1)
    (root,) = (await stage.rollout().grow(1, rows("x"))).roots
    assert [[c.text for c in row] for row in root.completions] == [
        ["a0b1p0s0", "a0b1p0s1"],
        ["a1b1p0s0", "a1b1p0s1"],
    ]
    assert [tuple(a.completion for a in action.actions) for action in stage.judge.seen] == [
        ("a0b1p0s0", "a1b1p0s0"),
        ("a0b1p0s1", "a1b1p0s1"),
    ]


async def test_cross_joint_actions_are_the_product_with_the_last_agent_fastest() -> None:
    stage = Stage(num_turns=1, joint_mode="cross")
    (root,) = (await stage.rollout().grow(1, rows("x"))).roots
    assert [branch.samples for branch in root.branches] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert stage.judge.seen[1].actions[0].completion == "a0b1p0s0"
    assert stage.judge.seen[1].actions[1].completion == "a1b1p0s1"


async def test_ids_are_the_same_whenever_the_same_place_is_reached_and_distinct_otherwise() -> None:
    stage, again = Stage(num_turns=3), Stage(num_turns=3)
    await stage.rollout().grow(2, rows("x", "y"))
    await again.rollout().grow(2, rows("x", "y"))
    ids = [action.id for action in stage.judge.seen]
    assert len(set(ids)) == len(ids) == 2 * (2 + 4 + 8)
    assert sorted(ids) == sorted(action.id for action in again.judge.seen)
    assert "train/2/1/0.1.0" in ids


async def test_histories_hold_what_each_agent_saw_and_said() -> None:
    stage = Stage(num_turns=3)
    await stage.rollout().grow(1, rows("x"))
    last = next(a for a in stage.judge.seen if a.id == "train/1/0/1.0.0")
    assert last.turn == 3
    assert last.history == (
        (AgentAction("[0] x", "a0b1p0s1"), AgentAction("[1] x", "a1b1p0s1")),
        (
            AgentAction("[0] again train/1/0/1 0", "a0b2p1s0"),
            AgentAction("[1] again train/1/0/1 1", "a1b2p1s0"),
        ),
    )


async def test_a_node_is_scored_while_other_nodes_still_generate() -> None:
    gate = asyncio.Event()
    stage = Stage(num_turns=1, choirs=[Choir(0), Choir(1, gate=gate)])
    scored: list[str] = []

    def called(task: str) -> None:
        scored.append(task)
        gate.set()  # the second task's completions come only after the first task was scored

    stage.judge.called = called
    async with asyncio.timeout(5):
        await stage.rollout().grow(1, rows("x", "y"))
    assert scored == ["row-0", "row-1"]


@pytest.mark.parametrize(("threshold", "expanded"), [(0.5, True), (0.49, False), (None, True)])
async def test_a_node_with_a_mean_strictly_above_the_threshold_is_not_continued(
    threshold: float | None, expanded: bool
) -> None:
    judge = Judge({"train/1/0/0": 1.0, "train/1/0/1": 0.0})
    grown = await Stage(threshold=threshold, judge=judge).rollout().grow(1, rows("x"))
    (root,) = grown.roots
    assert [branch.child is not None for branch in root.branches] == [expanded, expanded]
    if not expanded:
        assert grown.stops == {BranchStop.EARLY_TERMINATION: 2}


async def test_a_joint_action_without_a_reward_is_not_continued_and_its_siblings_are() -> None:
    judge = Judge({"train/1/0/0": None})
    stage = Stage(judge=judge)
    grown = await stage.rollout().grow(1, rows("x"))
    assert paths(grown.roots[0]) == [(), (1,)]
    assert [scored.joint_action.id for scored in stage.coach.asked] == ["train/1/0/1"]
    assert grown.stops[BranchStop.UNSCORED] == 1


async def test_a_node_with_no_reward_at_all_ends_there() -> None:
    judge = Judge({"train/1/0/0": None, "train/1/0/1": None})
    grown = await Stage(judge=judge).rollout().grow(1, rows("x"))
    assert paths(grown.roots[0]) == [()]
    assert grown.stops == {BranchStop.UNSCORED: 2}


async def test_a_branch_that_the_transition_ends_stops_there_and_says_why() -> None:
    grown = await Stage(coach=Coach(ends={"train/1/0/0"})).rollout().grow(1, rows("x"))
    ended = grown.roots[0].branches[0]
    assert (ended.stop, ended.stop_detail, ended.child) == (BranchStop.TRANSITION, "solved", None)
    assert paths(grown.roots[0]) == [(), (1,)]


async def test_a_branch_whose_next_prompt_does_not_fit_is_truncated_and_earlier_turns_stay() -> (
    None
):
    """L12: prompt and completion over the context end the branch, counted, not the run."""
    coach = Coach(words={"train/1/0/1": " ".join(["word"] * 97)})
    grown = await Stage(coach=coach).rollout().grow(1, rows("x"))
    (root,) = grown.roots
    assert paths(root) == [(), (0,)]
    assert root.branches[1].stop is BranchStop.TRUNCATED
    assert "100 tokens" in root.branches[1].stop_detail
    assert root.branches[1].reward == 0.0
    assert grown.stops[BranchStop.TRUNCATED] == 1


async def test_a_task_whose_first_prompt_does_not_fit_grows_no_tree_and_is_counted() -> None:
    """L12: the other tasks of the batch go on."""
    stage = Stage(num_turns=1)
    grown = await stage.rollout().grow(1, rows("ok", " ".join(["long"] * 96)))
    assert [root.row for root in grown.roots] == [0]
    assert [row for row, _ in grown.skipped] == [1]
    assert grown.stops == {BranchStop.LAST_TURN: 2, BranchStop.TRUNCATED: 1}


async def test_an_empty_completion_is_scored_as_an_empty_text() -> None:
    """L16: the end token at once is an answer like any other."""

    class Silent(Choir):
        async def generate(
            self, prompts: Sequence[PromptSamples], deliver: Callable[[Completion], None]
        ) -> None:
            for index, prompt in enumerate(prompts):
                for sample in range(len(prompt.seeds)):
                    made = completion(self.agent, 1, index, sample, prompt)
                    deliver(
                        Completion(
                            **{
                                **{name: getattr(made, name) for name in made.__slots__},
                                "text": "",
                                "token_ids": (2,),
                                "logprobs": (-0.1,),
                                "kept_sizes": (1,),
                            }
                        )
                    )

    stage = Stage(num_turns=1, choirs=[Silent(0), Silent(1)])
    (root,) = (await stage.rollout().grow(1, rows("x"))).roots
    assert stage.judge.seen[0].actions[0].completion == ""
    assert root.completions[0][0].token_ids == (2,)


async def test_the_first_failure_ends_the_rollout_and_is_what_is_raised() -> None:
    class Broken(Judge):
        async def score(
            self, task: Task, joint_actions: Sequence[JointAction]
        ) -> list[tuple[Score, float | None]]:
            raise ZeroDivisionError("the root error")

    never = asyncio.Event()
    stage = Stage(num_turns=1, judge=Broken(), choirs=[Choir(0), Choir(1, gate=never)])
    async with asyncio.timeout(5):
        with pytest.raises(ZeroDivisionError, match="the root error"):
            await stage.rollout().grow(1, rows("x", "y"))


async def test_every_joint_action_is_for_training_and_names_its_task() -> None:
    stage = Stage(num_turns=1)
    await stage.rollout().grow(1, rows("x"))
    assert {(a.task_id, a.phase, a.attempt) for a in stage.judge.seen} == {
        ("row-0", Phase.TRAIN, 1)
    }


async def test_agents_of_one_policy_are_one_batch_ascending_within_a_node() -> None:
    """Seeds are each agent's own; each completion comes back to the agent that it is of."""
    stage = Stage(num_agents=3, num_turns=2, policies=((0, 1, 2),))
    (root,) = (await stage.rollout().grow(1, rows("x"))).roots
    (choir,) = stage.choirs
    assert [len(batch) for batch in choir.batches] == [3, 6]
    asked = [(path, agent) for path in [(0,), (1,)] for agent in range(3)]
    assert [prompt.seeds for prompt in choir.batches[1]] == [
        tuple(seed_of(epoch=1, row=0, path=path, agent=agent, sample=s) for s in (0, 1))
        for path, agent in asked
    ]
    assert [[c.text for c in row] for row in root.completions] == [
        [f"a0b1p{agent}s{sample}" for sample in range(2)] for agent in range(3)
    ]
    assert [prompt.content for prompt in root.prompts] == ["[0] x", "[1] x", "[2] x"]


async def test_joint_answers_are_split_before_they_are_scored_and_followed() -> None:
    class Split:
        async def actions(self, node: Node) -> list[tuple[AgentAction, ...]]:
            return [
                (AgentAction("left", c.text[:4]), AgentAction("right", c.text[4:]))
                for c in node.completions[0]
            ]

    class Joined(Words):
        async def following(
            self, node: Node, samples: Sequence[int], prompts: Sequence[object]
        ) -> tuple[AgentPrompt, ...]:
            return self._made([" + ".join(map(str, prompts))])

    stage = Stage(num_agents=1, num_turns=2, actions=Split(), words=Joined(1))
    (root,) = (await stage.rollout().grow(1, rows("x"))).roots
    first = stage.judge.seen[0]
    assert [(a.prompt, a.completion) for a in first.actions] == [
        ("left", "a0b1"),
        ("right", "p0s0"),
    ]
    assert root.branches[1].role_texts == ("a0b1", "p0s1")
    child = root.branches[0].child
    assert child is not None
    assert child.prompts[0].content == "again train/1/0/0 0 + again train/1/0/0 1"
    later = [action for action in stage.judge.seen if action.turn == 2]
    assert [a.completion for a in later[0].history[0]] == ["a0b1", "p0s0"]
