"""What every part of a run is told or asks."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.learner.checkpoints.checkpoints import Checkpoints
from antiphon.learner.control.control import RunControl
from antiphon.learner.control.status import RunStatus
from antiphon.learner.record.record import RunRecord
from antiphon.learner.record.run_folder import RunFolder
from antiphon.learner.rollout.scoring import OnMainThread
from antiphon.learner.run.early_stop import EarlyStop


@dataclass(frozen=True)
class RunContext:
    """What every part of a run is told or asks."""

    folder: RunFolder
    record: RunRecord
    status: RunStatus
    control: RunControl
    checkpoints: Checkpoints
    on_main_thread: OnMainThread
    early_stop: EarlyStop | None = None
