"""TensorBoard."""

from __future__ import annotations

import json

from torch.utils.tensorboard.writer import SummaryWriter

from antiphon.clients.types import RunState
from antiphon.learner.record.trackers.base import MetricsRow, TrackedRun


class TensorBoardTracker:
    """Writes event files to `tensorboard/` in the run folder, over joint actions.

    What a resumed run had written after its checkpoint is no longer shown.

    Args:
        run: The run.
    """

    def __init__(self, run: TrackedRun) -> None:
        purge = run.joint_actions + 1 if run.resumed else None
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=purge)
        settings = json.dumps(run.config, indent=2, ensure_ascii=False)
        indented = "".join(f"    {line}\n" for line in settings.splitlines())
        self._writer.add_text("settings", indented, run.joint_actions)

    def log(self, row: MetricsRow) -> None:
        """Write a row; it is in the file when this returns."""
        counters = {"epoch": row.epoch, "prompts": row.prompts}
        for name, value in {**row.figures, **counters}.items():
            self._writer.add_scalar(name, value, row.joint_actions, row.time)
        self._writer.flush()

    def finish(self, state: RunState, error: str) -> None:
        """Write how the run ended, and close the file."""
        self._writer.add_text("ended", f"{state.value}\n\n{error}".rstrip())
        self._writer.close()
