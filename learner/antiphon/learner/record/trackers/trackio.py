"""trackio: a local dashboard, or one on a Hugging Face Space."""

from __future__ import annotations

import trackio

from antiphon.clients.types import RunState
from antiphon.learner.record.trackers.base import MetricsRow, TrackedRun
from antiphon.learner.record.trackers.settings import WandbConfig


class TrackioTracker:
    """Logs to one trackio run, over joint actions.

    Its interface is that of Weights & Biases, and so are its settings: `project`, `name`, `group`.
    Where it keeps them is trackio's to say (``TRACKIO_DIR``, ``TRACKIO_SPACE_ID``). It takes no row
    back: those after the checkpoint of a resumed run stay, and are not told again.

    Args:
        run: The run.
        settings: Project, name and group.
    """

    def __init__(self, run: TrackedRun, settings: WandbConfig) -> None:
        self._run = trackio.init(
            project=settings.project,
            name=settings.run_name_or(run.run_id),
            group=settings.group,
            config={**run.config, **settings.config_entries},
            resume="allow" if run.resumed else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self._told = range(0)
        """Steps of the rows that an earlier process told after its checkpoint."""
        if run.resumed:
            # trackio knows its last step, on a Space too, but has no public name for it.
            end = getattr(self._run, "_next_step", 0)
            self._told = range(run.joint_actions + 1 if run.joint_actions else 0, end)

    def log(self, row: MetricsRow) -> None:
        """Queue a row, unless it is there already."""
        if row.joint_actions in self._told:
            return
        counters = {"epoch": row.epoch, "prompts": row.prompts}
        self._run.log({**row.figures, **counters}, step=row.joint_actions)

    def finish(self, state: RunState, error: str) -> None:
        """Write what is left; a run that failed raises an alert."""
        if state is RunState.FAILED:
            self._run.alert("run failed", error, trackio.AlertLevel.ERROR)
        self._run.finish()
