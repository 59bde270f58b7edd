"""Weights & Biases."""

from __future__ import annotations

import re
from typing import Any

import wandb

from antiphon.clients.types import RunState
from antiphon.learner.record.trackers.base import MetricsRow, TrackedRun
from antiphon.learner.record.trackers.settings import WandbConfig


class WandbTracker:
    """Logs to one run of Weights & Biases, over joint actions.

    A resumed run goes on in the same run there, as its id is that of the run folder. What the
    terminal shows is not sent, as progress redraws itself.

    Args:
        run: The run.
        settings: Project, entity, name, mode and so on.

    Raises:
        wandb.errors.Error: Nobody is logged in, or the service refuses.
    """

    def __init__(self, run: TrackedRun, settings: WandbConfig) -> None:
        directory = settings.dir or run.folder
        directory.mkdir(parents=True, exist_ok=True)
        mode = settings.wandb_mode
        optional: dict[str, Any] = {
            "entity": settings.entity,
            "group": settings.group,
            "notes": settings.notes,
            "job_type": settings.job_type,
            "mode": mode,
            "tags": list(settings.tags) or None,
        }
        self._run = wandb.init(
            project=settings.project,
            name=settings.run_name_or(run.name),
            id=settings.id or re.sub(r"[^\w.-]", "-", run.run_id)[-64:],
            resume=settings.resume if mode is None or mode == "online" else None,
            dir=directory,
            config={**run.config, **settings.config_entries},
            settings=wandb.Settings(console="off"),
            **optional,
        )

    def log(self, row: MetricsRow) -> None:
        """Queue a row."""
        counters = {"epoch": row.epoch, "prompts": row.prompts}
        self._run.log({**row.figures, **counters}, step=row.joint_actions)

    def finish(self, state: RunState, error: str) -> None:
        """Send what is left; a run that failed is marked as failed."""
        self._run.summary.update({"state": state.value, "error": error})
        self._run.finish(exit_code=1 if state is RunState.FAILED else 0)
