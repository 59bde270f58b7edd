"""The training loop: roll out, update, publish, tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from antiphon.clients.types import RunState
from antiphon.learner.concurrency import task_group
from antiphon.learner.config import MAGRPOConfig
from antiphon.learner.control import RunControl, StoppedError
from antiphon.learner.data import Row, Tasks
from antiphon.learner.publisher import AgentPublisher, Publication
from antiphon.learner.record import RunRecord
from antiphon.learner.rollout import Grown, Rollout
from antiphon.learner.samples import TrainingSample, training_samples
from antiphon.learner.scoring import OnMainThread
from antiphon.learner.stages import PUSH, UPDATE, StageClock
from antiphon.learner.status import RunStatus
from antiphon.learner.updates import AgentUpdate, Updates


class TrainingRun:
    """Trains the agents on a dataset, rollout batch by rollout batch.

    Args:
        config: The settings.
        tasks: The dataset.
        rollout: Grows trees.
        updates: Takes optimiser steps.
        publishers: One per agent, agent 0 first.
        record: Told once at the end of each stage.
        status: Told where the run stands.
        control: Asked between rollout batches.
        clock: Where the time goes.
        on_main_thread: Reads the dataset, which may be the user's code.
    """

    def __init__(
        self,
        config: MAGRPOConfig,
        *,
        tasks: Tasks,
        rollout: Rollout,
        updates: Updates,
        publishers: Sequence[AgentPublisher],
        record: RunRecord,
        status: RunStatus,
        control: RunControl,
        clock: StageClock,
        on_main_thread: OnMainThread,
    ) -> None:
        self._config = config
        self._tasks = tasks
        self._rollout = rollout
        self._updates = updates
        self._publishers = publishers
        self._record = record
        self._status = status
        self._control = control
        self._clock = clock
        self._on_main_thread = on_main_thread

    async def train(self) -> None:
        """Train every epoch.

        Raises:
            StoppedError: Somebody asked for the end; updates and publishing have finished.
        """
        self._record.published(await self._publish(range(len(self._publishers))))
        self._status.change(RunState.TRAINING)
        for epoch in range(1, self._config.num_train_epochs + 1):
            batches = rollout_batches(self._tasks.epoch(), self._config.rollout_batch_size)
            while batch := await self._on_main_thread(partial(next, batches, None), "dataset"):
                await self._go_on()
                rows, end_of_epoch = batch
                await self._train_batch(epoch, rows, end_of_epoch=end_of_epoch)

    async def _train_batch(self, epoch: int, rows: Sequence[Row], *, end_of_epoch: bool) -> None:
        grown = await self._control.unless_stopped(self._rollout.grow(epoch, rows))
        self._record.rolled_out(epoch, grown.roots, skipped=len(grown.skipped))
        self._tell_skipped(grown)

        self._record.working_on("update", epoch=epoch)
        with self._clock.measure(UPDATE):
            updates = await self._updates.run(self._samples(grown), end_of_epoch=end_of_epoch)
        self._count(updates)
        self._record.updated(updates)

        self._record.working_on("push", epoch=epoch)
        self._record.published(await self._publish([u.agent for u in updates if u.stepped]))

        self._record.batch_done(self._clock.take())
        self._status.tell()

    async def _go_on(self) -> None:
        """Wait while paused; StoppedError where the run is to end."""
        if self._control.pause_asked:
            self._status.change(RunState.PAUSED)
            await self._control.wait_while_paused()
            if not self._control.stop_asked:
                self._status.change(RunState.TRAINING)
        if self._control.stop_asked:
            raise StoppedError(self._control.stop_reason)

    def _samples(self, grown: Grown) -> list[list[TrainingSample]]:
        """The nodes of all trees by agent, task after task, in pre-order."""
        num_agents = len(self._publishers)
        samples: list[list[TrainingSample]] = [[] for _ in range(num_agents)]
        for root in grown.roots:
            of_tree = training_samples(
                root,
                num_agents=num_agents,
                discount=self._config.discount,
                mode=self._config.advantage_mode,
                normalize=self._config.advantage_normalization,
            )
            for agent in range(num_agents):
                samples[agent] += of_tree[agent]
        return samples

    async def _publish(self, agents: Iterable[int]) -> list[Publication]:
        with self._clock.measure(PUSH):
            async with task_group() as group:
                pushes = [group.create_task(self._publishers[agent].publish()) for agent in agents]
        published = [push.result() for push in pushes]
        for publication in published:
            self._status.agents[publication.agent].weights_version = publication.version
        return published

    def _count(self, updates: Sequence[AgentUpdate]) -> None:
        for update in updates:
            steps = sum(stats.stepped for _, stats in update.steps)
            self._status.agents[update.agent].optimizer_steps += steps

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
