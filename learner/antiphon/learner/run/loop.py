"""The training loop: roll out, update, publish, tell."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import chain

from antiphon.clients import tracing
from antiphon.clients.types import RunState
from antiphon.learner.arithmetic.samples import TrainingSample, training_samples
from antiphon.learner.checkpoints.checkpoints import Checkpoints, Cursor
from antiphon.learner.concurrency import task_group
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.control.control import RunControl, StoppedError
from antiphon.learner.control.status import RunStatus
from antiphon.learner.data.tasks import Row, Tasks
from antiphon.learner.evaluation.plan import Evaluations
from antiphon.learner.policy.reference import References
from antiphon.learner.policy.updates import AgentUpdate, Updates
from antiphon.learner.record.record import RunRecord
from antiphon.learner.record.stages import PUSH, UPDATE, StageClock
from antiphon.learner.rollout.rollout import Grown, Rollout
from antiphon.learner.rollout.scoring import OnMainThread
from antiphon.learner.run.later_turns import LaterTurns
from antiphon.learner.run.limits import Limits
from antiphon.learner.run.pipeline import Pipeline, RolloutBatch
from antiphon.learner.weights.publisher import AgentPublisher, Publication


class TrainingRun:
    """Trains the agents on a dataset, rollout batch by rollout batch.

    Args:
        config: The settings.
        tasks: The dataset.
        rollout: Grows trees.
        updates: Takes optimiser steps.
        publishers: One per policy, policy 0 first.
        policies: The agents that each policy plays.
        record: Told once at the end of each stage.
        status: Told where the run stands.
        control: Asked between rollout batches.
        checkpoints: Told between rollout batches; knows how far an earlier process trained.
        clock: Where the time goes.
        on_main_thread: Reads the dataset, which may be the user's code.
        references: Measure the reference KL of trees; None where there is none.
        limits: What may end the run before its last epoch.
        evaluations: Made between rollout batches; None where there is nothing to evaluate on.
    """

    def __init__(
        self,
        config: MAGRPOConfig,
        *,
        tasks: Tasks,
        rollout: Rollout,
        updates: Updates,
        publishers: Sequence[AgentPublisher],
        policies: Sequence[Sequence[int]],
        record: RunRecord,
        status: RunStatus,
        control: RunControl,
        checkpoints: Checkpoints,
        clock: StageClock,
        on_main_thread: OnMainThread,
        references: References | None = None,
        limits: Limits | None = None,
        evaluations: Evaluations | None = None,
    ) -> None:
        self._config = config
        self._tasks = tasks
        self._rollout = rollout
        self._updates = updates
        self._publishers = publishers
        self._policies = policies
        self._references = references
        self._limits = Limits() if limits is None else limits
        self._evaluations = evaluations
        self._record = record
        self._status = status
        self._control = control
        self._checkpoints = checkpoints
        self._clock = clock
        self._on_main_thread = on_main_thread
        self._later_turns = LaterTurns(config, resumed=checkpoints.cursor != Cursor())

    async def train(self) -> None:
        """Train every epoch, or until a limit is reached.

        Raises:
            StoppedError: Somebody asked for the end; updates and publishing have finished.
        """
        everyone = self._publish(range(len(self._publishers)))
        self._record.published(await self._control.unless_stopped(everyone))
        self._checkpoints.ready()
        self._status.change(RunState.TRAINING)
        await self._evaluate()
        async with self._pipeline() as pipeline:
            while self._limits.reached is None and (batch := await pipeline.peek()):
                await self._go_on()
                self._record.working_on("generate", epoch=batch.epoch)
                with tracing.span("training_step", epoch=batch.epoch, prompts=len(batch.rows)):
                    grown = await self._control.unless_stopped(pipeline.next())
                    await self._train_batch(batch, grown)
        if self._limits.reached is not None:
            self._status.note(f"the run ends early: {self._limits.reached}")
        if self._limits.unread:
            self._status.note(f"stop_metric: no row of the metrics had {self._limits.unread!r}")
        await self._evaluate(last=True)
        await self._answer_evaluations()
        await self._checkpoints.finished()

    async def _train_batch(self, batch: RolloutBatch, grown: Grown) -> None:
        epoch, rows, end_of_epoch = batch.epoch, len(batch.rows), batch.end_of_epoch
        if self._references is not None:
            with self._clock.measure(UPDATE):
                await self._references.measure(grown.roots, self._updates.each)
        self._checkpoints.batch_begins()
        self._record.rolled_out(epoch, grown.roots, skipped=len(grown.skipped))
        self._tell_skipped(grown)
        if told := self._later_turns.observe(grown.roots):
            self._status.note(told)

        async with self._weights_move():
            self._record.working_on("update", epoch=epoch)
            with self._clock.measure(UPDATE):
                updates = await self._updates.run(self._samples(grown), end_of_epoch=end_of_epoch)
            updates = [
                replace(update, published=self._status.agents[update.agent].weights_version)
                for update in updates
            ]
            self._count(updates)
            self._limits.observe(updates)
            self._record.updated(updates)

            self._record.working_on("push", epoch=epoch)
            stepped = [policy for policy, update in enumerate(updates) if update.stepped]
            self._record.published(await self._publish(stepped))

        self._record.batch_done(self._clock.take())
        self._status.tell()
        self._checkpoints.batch_trained(epoch, rows, end_of_epoch=end_of_epoch)
        whole = end_of_epoch and epoch == self._config.num_train_epochs
        last = whole or self._limits.reached is not None
        await self._evaluate(last=last)
        await self._checkpoints.batch_done(epoch, rows, end_of_epoch=end_of_epoch)

    def _pipeline(self) -> Pipeline:
        return Pipeline(
            self._batches(),
            self._rollout.grow,
            ahead=self._config.max_staleness,
            on_main_thread=self._on_main_thread,
        )

    def _batches(self) -> Iterator[RolloutBatch]:
        """Every rollout batch that is not trained yet, epoch after epoch."""
        cursor, size = self._checkpoints.cursor, self._config.rollout_batch_size
        for epoch in range(cursor.next_epoch, self._config.num_train_epochs + 1):
            rows_left = self._tasks.epoch(epoch, cursor.rows_into(epoch))
            for rows, last in rollout_batches(rows_left, size):
                yield RolloutBatch(epoch, rows, last)

    @asynccontextmanager
    async def _weights_move(self) -> AsyncIterator[None]:
        """Weights are changed and published; who samples and lost them waits for the new ones."""
        async with AsyncExitStack() as stack:
            for publisher in self._publishers:
                await stack.enter_async_context(publisher.moving)
            yield

    async def _evaluate(self, *, last: bool = False) -> None:
        """Evaluate where that is due."""
        if self._evaluations is not None:
            await self._evaluations.if_due(last=last)

    async def _answer_evaluations(self) -> bool:
        """Evaluate for those who asked for it; whether somebody did."""
        return self._evaluations is not None and await self._evaluations.answer()

    async def _go_on(self) -> None:
        """Answer and wait while paused; StoppedError where the run is to end."""
        await self._answer_evaluations()
        if self._control.pause_asked:
            self._status.change(RunState.PAUSED)
            while self._control.pause_asked:
                await self._control.wait_while_paused()
                await self._checkpoints.answer()
                if await self._answer_evaluations() and self._control.pause_asked:
                    self._status.change(RunState.PAUSED)
            if not self._control.stop_asked:
                self._status.change(RunState.TRAINING)
        if self._control.stop_asked:
            raise StoppedError(self._control.stop_reason)

    def _samples(self, grown: Grown) -> list[list[TrainingSample]]:
        """The nodes of all trees by policy, in the order in which they enter its buffer.

        Task after task, in pre-order, and within a node the policy's agents ascending.
        """
        samples: list[list[TrainingSample]] = [[] for _ in self._policies]
        for root in grown.roots:
            of_tree = training_samples(
                root,
                num_agents=sum(len(agents) for agents in self._policies),
                discount=self._config.discount,
                mode=self._config.advantage_mode,
                normalize=self._config.advantage_normalization,
                reference_kl_coef=self._config.return_kl_coef,
                published=[agent.weights_version for agent in self._status.agents],
            )
            for policy, agents in enumerate(self._policies):
                by_node = zip(*(of_tree[agent] for agent in agents), strict=True)
                samples[policy] += chain.from_iterable(by_node)
        return samples

    async def _publish(self, policies: Iterable[int]) -> list[Publication]:
        which = list(policies)
        with self._clock.measure(PUSH):
            async with task_group() as group:
                pushes = [group.create_task(self._publishers[p].publish()) for p in which]
        published = [push.result() for push in pushes]
        for policy, publication in zip(which, published, strict=True):
            for agent in self._policies[policy]:
                self._status.agents[agent].weights_version = publication.version
        return published

    def _count(self, updates: Sequence[AgentUpdate]) -> None:
        for agents, update in zip(self._policies, updates, strict=True):
            steps = sum(stats.stepped for _, stats in update.steps)
            for agent in agents:
                self._status.agents[agent].optimizer_steps += steps

    def _tell_skipped(self, grown: Grown) -> None:
        for row, detail in grown.skipped:
            self._status.note(f"row {row} is skipped: {detail}")


def rollout_batches(rows: Iterable[Row], size: int) -> Iterator[tuple[list[Row], bool]]:
    """Batches of `size` rows, the last one smaller; each with whether it is the last."""
    batch: list[Row] = []
    for row in rows:
        if len(batch) == size:
            yield batch, False
            batch = []
        batch.append(row)
    if batch:
        yield batch, True
