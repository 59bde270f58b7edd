"""Opens the trackers that a run asks for, and keeps their failures away from it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from antiphon.clients.types import FieldError, RunState
from antiphon.learner.config.magrpo import TrackerName
from antiphon.learner.record.trackers.base import MetricsRow, TrackedRun, Tracker
from antiphon.learner.record.trackers.settings import WandbConfig
from antiphon.services.common.errors import StartError

FINISH_SECONDS = 60.0
"""Seconds that a tracker gets at the end to send what is left."""

logger = logging.getLogger(__name__)


def check_installed(names: Sequence[TrackerName]) -> None:
    """Refuse trackers that are not installed, before anything is started.

    Raises:
        FieldError: Names the tracker and the extra that brings it.
    """
    for name in names:
        spec = find_spec(name)
        # A folder that a tracker left in the working directory is found too, without an origin.
        if spec is None or spec.origin is None:
            raise FieldError(
                "trackers", f"{name!r}, which is not installed", f"pip install 'antiphon[{name}]'"
            )


def open_trackers(
    names: Sequence[TrackerName],
    run: TrackedRun,
    settings: WandbConfig,
    tell: Callable[[str], None],
) -> list[Tracker]:
    """Open trackers; a failure that one has later is told and ends that tracker only.

    Args:
        names: Which ones, each once.
        run: The run.
        settings: Settings of those that have some.
        tell: Shows a line to the user.

    Raises:
        StartError: A tracker does not open; it says why.
    """
    trackers: list[Tracker] = []
    for name in names:
        try:
            trackers.append(Guarded(name, open_tracker(name, run, settings), tell))
        except Exception as error:
            for opened in trackers:
                opened.finish(RunState.FAILED, f"{name} does not open")
            raise StartError(f"{name} does not open: {type(error).__name__}: {error}") from error
    return trackers


def open_tracker(name: TrackerName, run: TrackedRun, settings: WandbConfig) -> Tracker:
    """Open one tracker; its package is imported here."""
    if name == "wandb":
        from antiphon.learner.record.trackers.weights_and_biases import WandbTracker

        return WandbTracker(run, settings)
    if name == "tensorboard":
        from antiphon.learner.record.trackers.tensorboard import TensorBoardTracker

        return TensorBoardTracker(run)
    if name == "trackio":
        from antiphon.learner.record.trackers.trackio import TrackioTracker

        return TrackioTracker(run, settings)
    raise FieldError("trackers", repr(name), "wandb, tensorboard or trackio")


class Guarded:
    """A tracker whose failures are told once and do not end the run.

    Args:
        name: Its name, for messages.
        tracker: The tracker.
        tell: Shows a line to the user.
        finish_seconds: Seconds that it gets to finish.
    """

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        tell: Callable[[str], None],
        finish_seconds: float = FINISH_SECONDS,
    ) -> None:
        self._name = name
        self._tracker: Tracker | None = tracker
        self._tell = tell
        self._finish_seconds = finish_seconds

    def log(self, row: MetricsRow) -> None:
        """Tell a row; where that fails, the tracker is told nothing more."""
        if self._tracker is not None:
            try:
                self._tracker.log(row)
            except Exception as error:
                logger.warning("tracker %s failed", self._name, exc_info=True)
                self._failed(error)

    def finish(self, state: RunState, error: str) -> None:
        """Let the tracker finish, for `finish_seconds` at most."""
        if self._tracker is None:
            return
        thread = threading.Thread(
            target=self._finish, args=(self._tracker, state, error), daemon=True
        )
        thread.start()
        thread.join(self._finish_seconds)
        if thread.is_alive():
            self._tell(
                f"{self._name} has not sent everything within {self._finish_seconds:g} s; "
                "metrics.jsonl in the run folder holds it all"
            )

    def _finish(self, tracker: Tracker, state: RunState, error: str) -> None:
        try:
            tracker.finish(state, error)
        except Exception as failure:
            logger.warning("tracker %s failed", self._name, exc_info=True)
            self._failed(failure)

    def _failed(self, error: Exception) -> None:
        self._tracker = None
        self._tell(
            f"{self._name} failed and is told nothing more: {type(error).__name__}: {error}; "
            "metrics.jsonl in the run folder goes on"
        )
