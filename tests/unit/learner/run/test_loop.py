"""The loop: what is published when, and how pause and stop act."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.trees import make_node

from antiphon.clients.types import EvaluationResult, RunState, Task
from antiphon.learner.checkpoints.checkpoints import Cursor
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.control.control import RunControl, StoppedError
from antiphon.learner.data.tasks import Row, Tasks
from antiphon.learner.policy.updates import AgentUpdate
from antiphon.learner.record.stages import StageClock
from antiphon.learner.rollout.rollout import Grown
from antiphon.learner.run.loop import TrainingRun, rollout_batches
from antiphon.learner.weights.publisher import Publication

STEP = SimpleNamespace(stepped=True)
NO_STEP = SimpleNamespace(stepped=False)


@dataclass
class Story:
    """Takes the place of every part of a run and writes down what happens."""

    told: list[str] = field(default_factory=list)
    steps: dict[str, list[Any]] = field(default_factory=dict)
    before_growing: Callable[[str], Any] = lambda name: None
    versions: list[int] = field(default_factory=lambda: [0, 0])
    agents: list[SimpleNamespace] = field(
        default_factory=lambda: [
            SimpleNamespace(weights_version=0, optimizer_steps=0) for _ in range(2)
        ]
    )

    async def grow(self, epoch: int, rows: Sequence[Row]) -> Grown:
        name = f"{epoch}:{','.join(row.task.item['prompt'] for row in rows)}"
        await asyncio.sleep(0)
        if (waiting := self.before_growing(name)) is not None:
            await waiting
        self.told.append(f"grow {name}")
        self.name = name
        return Grown(roots=[])

    async def run(self, samples: Any, *, end_of_epoch: bool) -> list[AgentUpdate]:
        self.told.append("update, end of epoch" if end_of_epoch else "update")
        default = [STEP, STEP]
        stats = self.steps.get(self.name, default)
        return [AgentUpdate(agent, [([], stats[agent])]) for agent in range(2)]

    def publisher(self, agent: int) -> Any:
        async def publish() -> Publication:
            self.versions[agent] += 1
            self.told.append(f"publish {agent} v{self.versions[agent]}")
            return Publication(agent, self.versions[agent], 1, 0.1, 0.0)

        return SimpleNamespace(publish=publish, moving=asyncio.Lock())

    # Of the record and the status, only changes of state are of interest here.
    def change(self, state: RunState) -> None:
        self.told.append(state.value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **how: None


@dataclass
class Between:
    """Takes the place of the checkpoints, which are told between batches, at `cursor` so far."""

    cursor: Cursor = field(default_factory=Cursor)
    told: list[str] = field(default_factory=list)

    def ready(self) -> None:
        self.told.append("ready")

    def batch_begins(self) -> None:
        self.told.append("begins")

    def batch_trained(self, epoch: int, rows: int, *, end_of_epoch: bool) -> None:
        self.told.append(f"trained {epoch}:{rows}")

    async def batch_done(self, epoch: int, rows: int, *, end_of_epoch: bool) -> None:
        self.told.append(f"done {epoch}:{rows}{', end of epoch' if end_of_epoch else ''}")

    async def finished(self) -> None:
        self.told.append("finished")

    async def answer(self) -> None:
        self.told.append("answer")


def run_of(
    story: Story,
    control: RunControl,
    *prompts: str,
    checkpoints: Between | None = None,
    limits: Any = None,
    evaluations: Any = None,
    policies: Sequence[Sequence[int]] = ((0,), (1,)),
    **config: Any,
) -> TrainingRun:
    async def inline(function: Callable[[], Any], what: str) -> Any:
        return function()

    return TrainingRun(
        MAGRPOConfig(**{"num_train_epochs": 1, **config}),
        tasks=Tasks([{"prompt": prompt} for prompt in prompts]),
        rollout=story,  # type: ignore[arg-type]
        updates=story,  # type: ignore[arg-type]
        publishers=[story.publisher(agents[0]) for agents in policies],
        policies=policies,
        record=story,  # type: ignore[arg-type]
        status=story,  # type: ignore[arg-type]
        control=control,
        checkpoints=checkpoints or Between(),  # type: ignore[arg-type]
        clock=StageClock(),
        on_main_thread=inline,
        limits=limits,
        evaluations=evaluations,
    )


@dataclass
class Exams:
    """Takes the place of the evaluations, and tells into the story of the checkpoints."""

    told: list[str]
    control: RunControl = field(default_factory=RunControl)

    async def if_due(self, *, last: bool = False) -> None:
        self.told.append("evaluate, last" if last else "evaluate")

    async def answer(self) -> bool:
        waiting = self.control.evaluations.take()
        for request in waiting:
            request.deliver(EvaluationResult("", {}))
        return bool(waiting)


async def test_the_first_push_comes_before_anything_and_each_batch_publishes_once() -> None:
    """The last batch of an epoch causes the epoch's last drain, and still publishes once."""
    story = Story()
    await run_of(story, RunControl(), "x", "y", num_train_epochs=2).train()
    batch = ["publish 0 v{0}", "publish 1 v{0}"]
    assert story.told == [
        *(line.format(1) for line in batch),
        "training",
        *("grow 1:x", "update", *(line.format(2) for line in batch)),
        *("grow 1:y", "update, end of epoch", *(line.format(3) for line in batch)),
        *("grow 2:x", "update", *(line.format(4) for line in batch)),
        *("grow 2:y", "update, end of epoch", *(line.format(5) for line in batch)),
    ]


async def test_an_agent_without_an_optimiser_step_publishes_nothing() -> None:
    story = Story(steps={"1:x": [NO_STEP, STEP], "1:y": [NO_STEP, NO_STEP]})
    await run_of(story, RunControl(), "x", "y").train()
    assert [line for line in story.told if line.startswith("publish")] == [
        "publish 0 v1",
        "publish 1 v1",
        "publish 1 v2",
    ]
    assert [agent.weights_version for agent in story.agents] == [1, 2]


async def test_tasks_are_rolled_out_in_batches_of_the_size_configured() -> None:
    story = Story()
    await run_of(story, RunControl(), "x", "y", "z", rollout_batch_size=2).train()
    assert [line for line in story.told if line.startswith("grow")] == ["grow 1:x,y", "grow 1:z"]


async def test_a_pause_waits_before_the_next_batch_until_resume() -> None:
    control = RunControl()
    story = Story(before_growing=lambda name: control.pause() if name == "1:x" else None)
    running = asyncio.create_task(run_of(story, control, "x", "y").train())
    async with asyncio.timeout(5):
        while "paused" not in story.told:
            await asyncio.sleep(0)
        assert story.told[-3:-1] == ["publish 0 v2", "publish 1 v2"]
        control.resume()
        await running
    assert story.told[story.told.index("paused") + 1 :][:2] == ["training", "grow 1:y"]


async def test_checkpoints_are_told_between_batches_only() -> None:
    between = Between()
    run = run_of(Story(), RunControl(), "x", "y", "z", rollout_batch_size=2, checkpoints=between)
    await run.train()
    assert between.told == [
        "ready",
        *("begins", "trained 1:2", "done 1:2"),
        *("begins", "trained 1:1", "done 1:1, end of epoch", "finished"),
    ]


async def test_evaluations_come_before_the_first_prompt_and_between_training_and_saving() -> None:
    """So a stop within one loses no trained batch, and a checkpoint knows what was evaluated."""
    between = Between()
    exams = Exams(between.told)
    story = Story()
    await run_of(
        story, RunControl(), "x", "y", checkpoints=between, evaluations=exams, num_train_epochs=1
    ).train()
    assert between.told == [
        *("ready", "evaluate"),
        *("begins", "trained 1:1", "evaluate", "done 1:1"),
        *("begins", "trained 1:1", "evaluate, last", "done 1:1, end of epoch"),
        *("evaluate, last", "finished"),
    ]


async def test_a_run_that_a_limit_ends_evaluates_before_its_last_checkpoint() -> None:
    between = Between()
    limits = SimpleNamespace(reached="enough", unread=None)
    run = run_of(
        Story(),
        RunControl(),
        "x",
        checkpoints=between,
        evaluations=Exams(between.told),
        limits=limits,
    )
    await run.train()
    assert "begins" not in between.told
    assert between.told[-2:] == ["evaluate, last", "finished"]


async def test_an_evaluation_that_is_asked_for_during_a_pause_does_not_wait_for_the_end_of_it() -> (
    None
):
    control, story = RunControl(), Story()
    control.pause()
    run = run_of(story, control, "x", evaluations=Exams([], control))
    running = asyncio.create_task(run.train())
    async with asyncio.timeout(5):
        while "paused" not in story.told:
            await asyncio.sleep(0)
        asked = control.evaluations.ask(1)
        assert [result async for result in asked.results()] == [EvaluationResult("", {})]
        assert "grow 1:x" not in story.told
        control.resume()
        await running


@pytest.mark.parametrize(
    ("cursor", "grown"),
    [
        (Cursor(1, 2), ["1:z", "2:x,y", "2:z"]),
        (Cursor(1, 3, epoch_done=True), ["2:x,y", "2:z"]),
        (Cursor(2, 2), ["2:z"]),
        (Cursor(2, 3, epoch_done=True), []),
    ],
)
async def test_a_resumed_run_goes_on_behind_the_last_prompt_that_was_trained(
    cursor: Cursor, grown: list[str]
) -> None:
    """S12: no prompt is skipped or repeated; past the last one nothing is trained."""
    story = Story()
    await run_of(
        story,
        RunControl(),
        *("x", "y", "z"),
        num_train_epochs=2,
        rollout_batch_size=2,
        checkpoints=Between(cursor),
    ).train()
    told = [line.removeprefix("grow ") for line in story.told if line.startswith("grow")]
    assert told == grown


async def test_a_checkpoint_that_is_asked_for_during_a_pause_does_not_wait_for_the_end_of_it() -> (
    None
):
    control, between = RunControl(), Between()
    control.pause()
    running = asyncio.create_task(run_of(Story(), control, "x", checkpoints=between).train())
    async with asyncio.timeout(5):
        asked = control.ask_checkpoint()
        while "answer" not in between.told:
            await asyncio.sleep(0)
        assert control.take_checkpoint_requests() == [asked]
        assert "begins" not in between.told
        control.resume()
        await running


async def test_a_stop_drops_the_rollout_under_way_and_nothing_of_it_is_trained() -> None:
    control = RunControl()

    def hang(name: str) -> Any:
        if name != "1:y":
            return None
        control.stop("SIGTERM")
        return asyncio.Event().wait()

    story = Story(before_growing=hang)
    async with asyncio.timeout(5):
        with pytest.raises(StoppedError, match="SIGTERM"):
            await run_of(story, control, "x", "y", "z").train()
    assert story.told[-1] == "publish 1 v2"


async def test_a_stop_in_the_middle_of_an_update_lets_it_finish_and_publish() -> None:
    control = RunControl()

    class Stopping(Story):
        async def run(self, samples: Any, *, end_of_epoch: bool) -> list[AgentUpdate]:
            control.stop("SIGINT")
            return await super().run(samples, end_of_epoch=end_of_epoch)

    story = Stopping()
    with pytest.raises(StoppedError):
        await run_of(story, control, "x", "y").train()
    assert story.told[-3:] == ["update", "publish 0 v2", "publish 1 v2"]


async def test_a_stop_that_comes_when_everything_is_trained_changes_nothing() -> None:
    control = RunControl()

    class Stopping(Story):
        async def run(self, samples: Any, *, end_of_epoch: bool) -> list[AgentUpdate]:
            control.stop("SIGINT")
            return await super().run(samples, end_of_epoch=end_of_epoch)

    story = Stopping()
    await run_of(story, control, "x").train()
    assert story.told[-1] == "publish 1 v2"


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [(3, 2, [([0, 1], False), ([2], True)]), (2, 2, [([0, 1], True)]), (1, 5, [([0], True)])],
)
def test_batches_say_which_is_the_last(
    count: int, size: int, expected: list[tuple[list[int], bool]]
) -> None:
    rows = [Row(number, Task(str(number), {})) for number in range(count)]
    found = [([row.row for row in batch], last) for batch, last in rollout_batches(rows, size)]
    assert found == expected


@dataclass
class After:
    """A limit that is reached once so many batches are grown."""

    story: Story
    batches: int
    unread: str | None = None

    @property
    def reached(self) -> str | None:
        grown = sum(line.startswith("grow") for line in self.story.told)
        return "enough" if grown >= self.batches else None

    def observe(self, updates: object) -> None:
        del updates


@pytest.mark.parametrize("batches", [0, 1, 3, 9])
async def test_a_limit_ends_the_run_in_order_after_a_batch(batches: int) -> None:
    """Updates, publishing and the last checkpoint are as at the end of all epochs."""
    story, between = Story(), Between()
    run = run_of(
        story,
        RunControl(),
        *("x", "y"),
        num_train_epochs=2,
        limits=After(story, batches),
        checkpoints=between,
    )
    await run.train()
    told = ["1:x", "1:y", "2:x", "2:y"][:batches]
    assert [line[5:] for line in story.told if line.startswith("grow")] == told
    assert story.versions == [len(told) + 1] * 2
    assert between.told[-1] == "finished"


async def test_nodes_of_a_shared_policy_enter_in_pre_order_with_agents_ascending() -> None:
    """One buffer, one publish, and every agent that it plays has the new version."""
    root = make_node([0.0, 1.0], children={0: make_node([0.0, 1.0], path=(0,))})
    entered: list[Any] = []

    class Shared(Story):
        async def grow(self, epoch: int, rows: Sequence[Row]) -> Grown:
            return Grown(roots=[root])

        async def run(self, samples: Any, *, end_of_epoch: bool) -> list[AgentUpdate]:
            entered.extend(samples)
            return [AgentUpdate(0, [([], STEP)])]  # type: ignore[list-item]

    story = Shared()
    await run_of(story, RunControl(), "x", policies=[(0, 1)]).train()
    (samples,) = entered
    assert [(s.path, s.agent) for s in samples] == [((), 0), ((), 1), ((0,), 0), ((0,), 1)]
    assert [line for line in story.told if line.startswith("publish")] == [
        "publish 0 v1",
        "publish 0 v2",
    ]
    assert [(a.weights_version, a.optimizer_steps) for a in story.agents] == [(2, 1)] * 2


@pytest.mark.parametrize("staleness", [0, 1, 3])
async def test_a_batch_is_sampled_at_most_so_many_publishes_before_its_update(
    staleness: int,
) -> None:
    """And as many as may be, so that sampling and update overlap; evaluations do not change it."""
    begun: dict[str, int] = {}
    found: list[int] = []

    class Timed(Story):
        async def grow(self, epoch: int, rows: Sequence[Row]) -> Grown:
            name = str(rows[0].row)
            begun[name] = self.versions[0]
            return Grown(roots=[], skipped=[(rows[0].row, "")])

        async def run(self, samples: Any, *, end_of_epoch: bool) -> list[AgentUpdate]:
            found.append(self.versions[0] - begun[str(len(found))])
            return [AgentUpdate(agent, [([], STEP)]) for agent in range(2)]  # type: ignore[list-item]

    prompts = [str(number) for number in range(6)]
    await run_of(
        Timed(), RunControl(), *prompts, max_staleness=staleness, evaluations=Exams([])
    ).train()
    assert found == [min(number, staleness) for number in range(6)]


async def test_what_is_sampled_ahead_waits_through_a_pause_and_is_trained_once() -> None:
    control = RunControl()
    story = Story(before_growing=lambda name: control.pause() if name == "1:x" else None)
    running = asyncio.create_task(run_of(story, control, "x", "y", "z", max_staleness=1).train())
    async with asyncio.timeout(5):
        while "paused" not in story.told:
            await asyncio.sleep(0)
        assert "grow 1:y" in story.told
        assert "grow 1:z" not in story.told, "it may be begun after the publish of the first only"
        control.resume()
        await running
    assert sorted(line for line in story.told if line.startswith("grow")) == [
        "grow 1:x",
        "grow 1:y",
        "grow 1:z",
    ]
    assert story.versions == [4, 4]


async def test_a_replica_that_lost_its_weights_is_sent_none_while_they_change() -> None:
    """From before the update until all are published."""
    held: list[tuple[str, bool]] = []

    class Locked(Story):
        def publisher(self, agent: int) -> Any:
            made = super().publisher(agent)
            publish = made.publish

            async def telling() -> Publication:
                held.append((f"publish {agent}", made.moving.locked()))
                return await publish()  # type: ignore[no-any-return]

            made.publish = telling
            self.moving = made.moving
            return made

        async def run(self, samples: Any, *, end_of_epoch: bool) -> list[AgentUpdate]:
            held.append(("update", self.moving.locked()))
            return await super().run(samples, end_of_epoch=end_of_epoch)

    story = Locked()
    await run_of(story, RunControl(), "x").train()
    assert held[2:] == [("update", True), ("publish 0", True), ("publish 1", True)]
    assert not story.moving.locked()
