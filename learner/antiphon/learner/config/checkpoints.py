"""When checkpoints are written, where, and how many are kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from antiphon.clients.types import FieldError
from antiphon.learner.config.magrpo import MAGRPOConfig


@dataclass(frozen=True)
class CheckpointSettings:
    """How a run is saved on its way.

    A run that is stopped or fails is saved in any case.

    Attributes:
        every_epochs: Epochs between two checkpoints; 0 writes none at the end of epochs.
        every_prompts: Prompts between two checkpoints, None for none.
        total_limit: Checkpoints that are kept, None for all.
        directory: Where they are; None stands for `checkpoints` in the run folder.
    """

    every_epochs: int = 1
    every_prompts: int | None = None
    total_limit: int | None = 2
    directory: Path | None = None

    @property
    def periodic(self) -> bool:
        """Whether any are written as long as nothing goes wrong."""
        return self.every_epochs > 0 or self.every_prompts is not None

    def due(self, *, prompts_before: int, prompts: int, epoch_done: int | None) -> bool:
        """Whether one is due once a rollout batch is trained.

        Args:
            prompts_before: Prompts trained before it, over all epochs.
            prompts: Prompts trained after it.
            epoch_done: The epoch that it ended, None where it ended none.
        """
        every = self.every_prompts
        if every is not None and prompts // every > prompts_before // every:
            return True
        if epoch_done is None or self.every_epochs == 0:
            return False
        return epoch_done % self.every_epochs == 0

    def in_run(self, run_folder: Path) -> Path:
        """Where the checkpoints of the run in `run_folder` are."""
        return run_folder / "checkpoints" if self.directory is None else self.directory


def checkpoint_settings(
    config: MAGRPOConfig,
    *,
    directory: str | Path | None = None,
    interval: int | None = None,
    total_limit: int | None = None,
) -> CheckpointSettings:
    """What the config says, with what `train` was told on top.

    With a `directory`, `interval` and `total_limit` mean what they do in CoMLRL: every epoch, and
    all are kept.

    Raises:
        FieldError: An argument is no positive number.
    """
    given = {"checkpoint_interval": interval, "checkpoint_total_limit": total_limit}
    for name, value in given.items():
        if value is not None and (type(value) is not int or value < 1):
            raise FieldError(name, repr(value), "a whole number, 1 or more")
    if directory is not None:
        return CheckpointSettings(
            every_epochs=1 if interval is None else interval,
            every_prompts=config.checkpoint_every_prompts,
            total_limit=total_limit,
            directory=Path(directory).expanduser().absolute(),
        )
    return CheckpointSettings(
        every_epochs=config.checkpoint_interval if interval is None else interval,
        every_prompts=config.checkpoint_every_prompts,
        total_limit=config.checkpoint_total_limit if total_limit is None else total_limit,
    )
