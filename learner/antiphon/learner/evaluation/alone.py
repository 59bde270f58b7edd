"""Evaluates outside of training: starts what it needs, evaluates once, takes everything down."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

from antiphon.learner.checkpoints.checkpoints import Checkpoints
from antiphon.learner.concurrency import task_group
from antiphon.learner.config.checkpoints import CheckpointSettings
from antiphon.learner.control.control import RunControl
from antiphon.learner.control.events import EventLog
from antiphon.learner.control.signals import RunSignals
from antiphon.learner.control.status import RunStatus
from antiphon.learner.evaluation.figures import Evaluation
from antiphon.learner.evaluation.plan import evaluation_line
from antiphon.learner.local import LocalServices
from antiphon.learner.record.record import RunRecord
from antiphon.learner.record.run_folder import RunFolder
from antiphon.learner.run.assemble import Assembly
from antiphon.learner.run.context import RunContext
from antiphon.learner.run.setup import RunSetup
from antiphon.learner.run.watchdog import Watchdog, on_main_thread
from antiphon.services.common.hosting import Host
from antiphon.services.common.main_thread import MainThread

NUMBER = 0
"""Of every evaluation outside of training; those of a run count from 1."""


def evaluate(setup: RunSetup, folder: RunFolder, num_samples: int) -> dict[str, float]:
    """Evaluate the models as they are, on the main thread; they are left as they are.

    Args:
        setup: The run, with what to evaluate on.
        folder: The run that asks the services; logs go there, but no record is written.
        num_samples: Most tasks.

    Returns:
        Figures by name, ``eval/turn_1/reward_mean`` and so on.

    Raises:
        KeyboardInterrupt: SIGINT came.
        SystemExit: SIGTERM came (143).
        Exception: The root error of an evaluation that failed.
    """
    main_thread = MainThread()
    alone = _Alone(setup, folder, main_thread)
    with RunSignals(alone.kill_children) as signals:
        try:
            evaluation = main_thread.serve(partial(alone.run, signals, num_samples))
        finally:
            alone.watchdog.release()
    signals.raise_received()
    return dict(evaluation.figures)


class _Alone:
    def __init__(self, setup: RunSetup, folder: RunFolder, main_thread: MainThread) -> None:
        self._setup = setup
        self._folder = folder
        self._main_thread = main_thread
        self._local: LocalServices | None = None
        self.watchdog = Watchdog(
            setup.config.progress_timeout, doing=lambda: "evaluating", paused=lambda: False
        )

    def kill_children(self) -> None:
        """End the children at once."""
        if self._local is not None:
            self._local.kill()

    async def run(self, signals: RunSignals, num_samples: int) -> Evaluation:
        """The whole evaluation."""
        context = self._context()
        signals.connect(context.control.stop)
        host = Host(self._main_thread, lambda error: context.record.note(str(error)))
        local = self._local = LocalServices(self._setup, self._folder.path, host)
        try:
            async with (
                self.watchdog.watching(),
                local.running(),
                AsyncExitStack() as stack,
                task_group() as group,
            ):
                watches = [
                    group.create_task(self.watchdog.stuck()),
                    group.create_task(local.watch()),
                ]
                evaluator = await context.control.unless_stopped(
                    Assembly(self._setup, local, context, stack).evaluator()
                )
                evaluation = await context.control.unless_stopped(
                    evaluator.evaluate(NUMBER, num_samples)
                )
                for watch in watches:
                    watch.cancel()
            context.record.note(evaluation_line(evaluation))
        finally:
            context.record.abandon()
        return evaluation

    def _context(self) -> RunContext:
        setup, names = self._setup, [agent.name for agent in self._setup.agents]
        control = RunControl()
        record = RunRecord(
            self._folder,
            setup.config,
            num_agents=setup.num_agents,
            models=names,
            progress=setup.open_progress(),
        )
        status = RunStatus(
            self._folder, record, control, EventLog(), num_epochs=0, prompts_total=0, models=names
        )
        checkpoints = Checkpoints(
            self._folder,
            CheckpointSettings(),
            description={},
            record=record,
            status=status,
            control=control,
        )
        calls = partial(on_main_thread, self._main_thread)
        return RunContext(self._folder, record, status, control, checkpoints, calls)
