"""What every tracker is told, and what it must be able to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from antiphon.clients.types import RunState


@dataclass(frozen=True)
class TrackedRun:
    """The run that is told of.

    Attributes:
        run_id: Its id, the same when it is resumed.
        name: What people call it.
        folder: Its folder.
        config: The resolved settings, as JSON values.
        resumed: Whether it has been trained before.
        joint_actions: Joint actions so far, 0 where it is new.
    """

    run_id: str
    name: str
    folder: Path
    config: Mapping[str, Any]
    resumed: bool = False
    joint_actions: int = 0


@dataclass(frozen=True)
class MetricsRow:
    """Figures since the row before.

    Attributes:
        joint_actions: Joint actions of training so far, the step that curves are drawn over.
        epoch: Epoch under way, counted from 1.
        prompts: Prompts trained so far.
        time: Seconds since 1970.
        elapsed_seconds: Seconds since the run began.
        figures: By name, as ``turn_1/reward_mean``.
    """

    joint_actions: int
    epoch: int
    prompts: int
    time: float
    elapsed_seconds: float
    figures: Mapping[str, float]


class Tracker(Protocol):
    """Is told the figures of one run. Used from one thread at a time."""

    def log(self, row: MetricsRow) -> None:
        """Tell a row; it must not wait for a network."""
        ...

    def finish(self, state: RunState, error: str) -> None:
        """Tell how the run ended and send what is left. May take long."""
        ...
