"""Starts what a run needs, trains, and takes everything down whatever happens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from antiphon.clients.types import RunState
from antiphon.learner.checkpoints.checkpoints import Checkpoints
from antiphon.learner.checkpoints.store import Checkpoint
from antiphon.learner.concurrency import task_group
from antiphon.learner.config.checkpoints import CheckpointSettings, checkpoint_settings
from antiphon.learner.control.control import RunControl, StoppedError
from antiphon.learner.control.events import EventLog
from antiphon.learner.control.service import SERVICE_NAME, LearnerServicer
from antiphon.learner.control.signals import RunSignals
from antiphon.learner.control.status import RunStatus
from antiphon.learner.local import LocalServices
from antiphon.learner.policy.setup import policies_of
from antiphon.learner.record.description import described
from antiphon.learner.record.metrics import learner_metrics
from antiphon.learner.record.record import RunRecord
from antiphon.learner.record.run_folder import RunFolder
from antiphon.learner.record.trackers.base import TrackedRun, Tracker
from antiphon.learner.record.trackers.opening import open_trackers
from antiphon.learner.run.assemble import Assembly
from antiphon.learner.run.context import RunContext
from antiphon.learner.run.early_stop import EarlyStop
from antiphon.learner.run.setup import RunSetup, save_policies
from antiphon.learner.run.watchdog import Watchdog, on_main_thread
from antiphon.learner.weights.replicas import RunSupersededError
from antiphon.services.common.hosting import Host
from antiphon.services.common.main_thread import MainThread
from antiphon.services.common.server import Server
from antiphon.v1.learner_pb2_grpc import add_LearnerServiceServicer_to_server


def train(
    setup: RunSetup,
    folder: RunFolder,
    *,
    resume_with: str,
    checkpoints: CheckpointSettings | None = None,
    resume: Checkpoint | None = None,
    notes: Sequence[str] = (),
) -> RunState:
    """Train a run to its end, on the main thread.

    Args:
        setup: The run.
        folder: Where it is kept.
        resume_with: What the user types to go on where the run was stopped.
        checkpoints: When to save it, None as its config says.
        resume: Where to go on from, None from the beginning.
        notes: What the user should know at the start.

    Returns:
        FINISHED, or STOPPED where somebody asked for the end.

    Raises:
        KeyboardInterrupt: SIGINT came; the run has ended in order.
        SystemExit: SIGTERM came (143); the run has ended in order.
        Exception: The root error of a run that failed.
    """
    main_thread = MainThread()
    settings = checkpoints or checkpoint_settings(setup.config)
    launch = _Launch(setup, folder, main_thread, settings, resume, notes, resume_with)
    with RunSignals(launch.kill_children) as signals:
        try:
            state = main_thread.serve(partial(launch.run, signals))
        finally:
            launch.release_watchdog()
    signals.raise_received()
    return state


class _Launch:
    """One run, from its first process to its last line."""

    def __init__(
        self,
        setup: RunSetup,
        folder: RunFolder,
        main_thread: MainThread,
        checkpoints: CheckpointSettings,
        resume: Checkpoint | None,
        notes: Sequence[str],
        resume_with: str,
    ) -> None:
        self._setup = setup
        self._folder = folder
        self._main_thread = main_thread
        self._checkpoint_settings = checkpoints
        self._resume = resume
        self._notes = notes
        self._resume_with = resume_with
        self._description = described(setup)
        self._local: LocalServices | None = None
        self._trackers: list[Tracker] = []
        self._watchdog: Watchdog | None = None

    def kill_children(self) -> None:
        """End the children at once."""
        if self._local is not None:
            self._local.kill()

    def release_watchdog(self) -> None:
        """Let the process live: the run has ended, with every thread of its event loop."""
        if self._watchdog is not None:
            self._watchdog.release()

    async def run(self, signals: RunSignals) -> RunState:
        """The whole run; the learner's own service answers from its beginning to its end."""
        setup, names = self._setup, [agent.name for agent in self._setup.agents]
        self._events, control = EventLog(), RunControl()
        rule = setup.config.stop_rule
        self._early_stop = None if rule is None else EarlyStop(rule)
        self._record = RunRecord(
            self._folder,
            setup.config,
            num_agents=setup.num_agents,
            models=names,
            prompts_total=setup.prompts_total,
            metrics=learner_metrics(),
            progress=setup.open_progress(),
            on_metrics=self._on_metrics,
        )
        self._status = RunStatus(
            self._folder,
            self._record,
            control,
            self._events,
            num_epochs=setup.config.num_train_epochs,
            prompts_total=setup.prompts_total,
            models=names,
        )

        def stop(signal: str) -> None:
            control.stop(signal)
            updating = self._record.snapshot().stage == "update"
            first = " once the update under way is done" if updating else ""
            self._status.note(
                f"{signal}: the run ends in order{first}; a second one ends it at once"
            )

        signals.connect(stop)
        checkpoints = Checkpoints(
            self._folder,
            self._checkpoint_settings,
            description=self._description,
            record=self._record,
            status=self._status,
            control=control,
            resume=self._resume,
        )
        if self._early_stop is not None:
            checkpoints.add("early_stop", [self._early_stop])
        context = RunContext(
            self._folder,
            self._record,
            self._status,
            control,
            checkpoints,
            partial(on_main_thread, self._main_thread),
            self._early_stop,
        )
        if setup.evaluation is None:
            control.evaluations.refuse("this run has no evaluation dataset")
        watchdog = self._watchdog = Watchdog(
            setup.config.progress_timeout, doing=self._doing, paused=lambda: control.waits
        )
        servicer = LearnerServicer(self._status, control, self._events)
        async with watchdog.watching(), self._served(servicer):
            try:
                return await self._told(self._train(context, watchdog))
            finally:
                control.end()

    async def _told(self, training: Coroutine[Any, Any, None]) -> RunState:
        """Await the training; record, watchers and terminal learn how it ended."""
        state, error, superseded = RunState.FAILED, "", False
        try:
            try:
                await training
                state = RunState.FINISHED
            except StoppedError as stopped:
                state = RunState.STOPPED
                self._tell_stopped(str(stopped))
            if self._setup.ranks is not None:
                await asyncio.to_thread(self._setup.ranks.check)
            if self._setup.save_models:
                await asyncio.to_thread(self._save_models)
        except BaseException as failure:
            state, error = RunState.FAILED, f"{type(failure).__name__}: {failure}"
            superseded = isinstance(failure, RunSupersededError)
            raise
        finally:
            if superseded:
                self._record.abandon()
            else:
                self._record.finish(state, error)
            for tracker in self._trackers:
                await asyncio.to_thread(tracker.finish, state, error)
            self._status.change(state, error)
            self._events.close()
        return state

    async def _train(self, context: RunContext, watchdog: Watchdog) -> None:
        """Start services, train, end services; the policies hand their models back."""
        for note in self._notes:
            self._status.note(note)
        checkpoints = context.checkpoints
        await checkpoints.restore()  # the record: what follows is told how far the run is
        await context.control.unless_stopped(self._open_trackers())
        if checkpoints.finished_before(self._setup.config.num_train_epochs):
            await asyncio.to_thread(self._restore_models, checkpoints)
            return
        host = Host(self._main_thread, self._tell_hung)
        local = self._local = LocalServices(self._setup, self._folder.path, host)
        async with local.running(), AsyncExitStack() as stack:
            assembly = Assembly(self._setup, local, context, stack)
            try:
                async with task_group() as group:
                    watches = [group.create_task(watchdog.stuck())]
                    run = await context.control.unless_stopped(assembly.training_run())
                    watches.append(group.create_task(local.watch()))
                    await run.train()
                    for watch in watches:
                        watch.cancel()
            except RunSupersededError:
                raise
            except Exception:
                await checkpoints.save_rest()
                raise

    async def _open_trackers(self) -> None:
        """They may wait for a network, so a thread opens them."""
        config = json.loads((self._folder.path / "config.json").read_text())
        run = TrackedRun(
            run_id=self._folder.run_id,
            name=self._folder.path.name,
            folder=self._folder.path,
            # The settings of training come first, by their own names, as in CoMLRL.
            config={**config.pop("magrpo"), **config},
            resumed=self._folder.incarnation > 0,
            joint_actions=self._record.joint_actions,
        )
        loop = asyncio.get_running_loop()

        def tell(text: str) -> None:
            loop.call_soon_threadsafe(self._status.note, text)

        self._trackers = await asyncio.to_thread(
            open_trackers, self._setup.trackers, run, self._setup.wandb, tell
        )
        self._record.track(self._trackers)

    def _restore_models(self, checkpoints: Checkpoints) -> None:
        """Give the models the weights that the run ended with, nothing else being left to do."""
        policies = policies_of(self._setup)
        checkpoints.add("policy", policies)
        checkpoints.load_new()
        for policy in policies:
            policy.restore_dtype()

    def _save_models(self) -> None:
        save_policies(self._setup, self._folder.path)

    def _on_metrics(self, joint_actions: int, row: Mapping[str, float]) -> None:
        self._status.tell_metrics(joint_actions, dict(row))
        if self._early_stop is not None:
            self._early_stop.observe(row)

    def _doing(self) -> str:
        """What the run is doing, for who asks why it does not get on."""
        now = self._record.snapshot()
        turn = f", turn {now.turn} of {now.prompt[:60]!r}" if now.turn else ""
        return f"working on {now.stage} of epoch {now.epoch}{turn}" if now.stage else ""

    def _tell_stopped(self, reason: str) -> None:
        done, total = self._record.prompts_done, self._setup.prompts_total
        self._status.note(
            f"the run is stopped ({reason}) after {done}{f' of {total}' if total else ''} prompts, "
            f"in epoch {self._record.epoch}; to go on: {self._resume_with}"
        )

    def _tell_hung(self, error: Exception) -> None:
        self._status.note(str(error))

    @asynccontextmanager
    async def _served(self, servicer: LearnerServicer) -> AsyncIterator[None]:
        """The learner's own service; its address is on the terminal and in the run folder."""
        settings, folder = self._setup.server, self._folder.path
        if settings.address_file is None:
            settings = settings.model_copy(update={"address_file": folder / "learner.json"})
        server = Server(
            settings,
            name="learner",
            services=[SERVICE_NAME],
            register=partial(add_LearnerServiceServicer_to_server, servicer),
        )
        await server.start()
        try:
            self._status.note(f"run folder: {folder}")
            self._status.note(f"watch it: antiphon watch {server.address}")
            if server.metrics_address:
                self._status.note(f"metrics: http://{server.metrics_address}/metrics")
            yield
        finally:
            await server.stop()
