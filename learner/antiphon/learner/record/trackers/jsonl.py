"""Rows as lines of JSON in the run folder; every run has it."""

from __future__ import annotations

from pathlib import Path

from antiphon.clients.types import RunState
from antiphon.learner.record.run_folder import append_lines
from antiphon.learner.record.trackers.base import MetricsRow


class JsonlTracker:
    """Appends a line per row.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def log(self, row: MetricsRow) -> None:
        """Append a line; it is in the file when this returns."""
        counters = {
            "joint_actions": row.joint_actions,
            "epoch": row.epoch,
            "prompts": row.prompts,
            "time": row.time,
            "elapsed_seconds": row.elapsed_seconds,
        }
        append_lines(self._path, [{**counters, **row.figures}])

    def finish(self, state: RunState, error: str) -> None:
        """Nothing is left to write; summary.json says how the run ended."""
