"""When a run is saved, and what of it: every component's state, and the cursor.

A checkpoint is taken between two rollout batches only: after the publish, when all nodes of the
batch have entered the buffers. Whatever breaks in between, the state of the last such moment is
still on disk or still in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from antiphon.clients.waiting import progressed, waiting_for
from antiphon.learner.checkpoints.random_state import RandomState
from antiphon.learner.checkpoints.state_files import Part, load_part
from antiphon.learner.checkpoints.store import Checkpoint, CheckpointStore
from antiphon.learner.config.checkpoints import CheckpointSettings
from antiphon.learner.control.control import RunControl
from antiphon.learner.control.status import RunStatus
from antiphon.learner.record.record import RunRecord
from antiphon.learner.record.run_folder import RunFolder
from antiphon.learner.weights.replicas import RunSupersededError


@dataclass(frozen=True)
class Cursor:
    """How far the dataset is trained: the last prompt whose nodes have all entered the buffers.

    Attributes:
        epoch: The epoch under way, counted from 1.
        rows: Rows of it that are trained.
        epoch_done: Whether those were all.
    """

    epoch: int = 1
    rows: int = 0
    epoch_done: bool = False

    @property
    def next_epoch(self) -> int:
        """The epoch of the next prompt."""
        return self.epoch + 1 if self.epoch_done else self.epoch

    def rows_into(self, epoch: int) -> int:
        """Rows of an epoch that are trained, for the next one or a later one."""
        return self.rows if epoch == self.epoch and not self.epoch_done else 0

    def finished(self, num_epochs: int) -> bool:
        """Whether nothing is left of this many epochs."""
        return self.next_epoch > num_epochs


class Checkpoints:
    """The checkpoints of a run in training. Used from the event loop only.

    Args:
        folder: The run's folder.
        settings: When to save, where, and how many to keep.
        description: What the run was told (`description.described`).
        record: Counts prompts; a component itself.
        status: Knows the incarnation, and is told what was saved.
        control: Holds who asked for a checkpoint.
        resume: Where an earlier process of this run left off, None for a beginning.
        store: Writes them; None for one in the folder of the settings.

    Attributes:
        components: Whose state a checkpoint holds, by name. Parts of a run add themselves before it
            trains; a part that a checkpoint knows nothing of starts as it was made.
        cursor: How far the dataset is trained.
    """

    def __init__(
        self,
        folder: RunFolder,
        settings: CheckpointSettings,
        *,
        description: Mapping[str, Any],
        record: RunRecord,
        status: RunStatus,
        control: RunControl,
        resume: Checkpoint | None = None,
        store: CheckpointStore | None = None,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._description = description
        self._record = record
        self._status = status
        self._control = control
        self._store = store or CheckpointStore(settings.in_run(folder.path))
        self._resume = resume
        self._loaded: set[str] = set()
        self.components: dict[str, Part] = {"record": record}
        self._random_state = RandomState()
        self.cursor = Cursor() if resume is None else cursor_of(resume)
        self._between_batches = False
        self._newest = resume
        self._newest_cursor = self.cursor  # what is trained up to here need not be saved again
        self._saving: asyncio.Task[Checkpoint] | None = None

    @property
    def current(self) -> Checkpoint | None:
        """The checkpoint of this moment, None where none is written."""
        return self._newest if self.cursor == self._newest_cursor else None

    def add(self, name: str, components: Sequence[Part]) -> None:
        """Have the state of these in every checkpoint, as ``name_0``, ``name_1``, ..."""
        for number, component in enumerate(components):
            self.components[f"{name}_{number}"] = component

    async def restore(self) -> None:
        """Let the components that were added since the last call go on where the run left off.

        Raises:
            FieldError: A state does not fit its component.
        """
        await asyncio.to_thread(self.load_new)

    def load_new(self) -> None:
        """`restore`, in this thread."""
        new = [name for name in self.components if name not in self._loaded]
        self._loaded.update(new)
        if self._resume is None:
            if "record" in new:
                self._record.begin_anew()
            return
        for name in new:
            if self._resume.holds(name):
                load_part(self._resume.path, name, self.components[name])

    def finished_before(self, num_epochs: int) -> bool:
        """Whether the run that is resumed has nothing left of this many epochs; says so."""
        if self._resume is None or not self.cursor.finished(num_epochs):
            return False
        self._status.note(
            f"run {self._folder.run_id} has trained all of its {num_epochs} epochs: nothing is "
            "left to train"
        )
        return True

    def ready(self) -> None:
        """The first weights are published.

        Random generators go on where the run left off: user code that was tried until now, prompts
        among it, has drawn from them.
        """
        self.components["random_state"] = self._random_state
        self.load_new()
        self._at_rest()

    def batch_begins(self) -> None:
        """A rollout batch is about to change the components.

        Raises:
            RunSupersededError: A later learner has taken over the run folder.
        """
        self.check_current()
        self._between_batches = False

    def batch_trained(self, epoch: int, rows: int, *, end_of_epoch: bool) -> None:
        """A rollout batch is trained, published and recorded.

        Args:
            epoch: Counted from 1.
            rows: Rows of the batch.
            end_of_epoch: Whether it was the epoch's last.
        """
        self.cursor = Cursor(epoch, self.cursor.rows_into(epoch) + rows, end_of_epoch)
        self._at_rest()

    async def batch_done(self, epoch: int, rows: int, *, end_of_epoch: bool) -> None:
        """All that follows a rollout batch is done too; save where that is due or asked for.

        The arguments are those of `batch_trained`.
        """
        prompts = self._record.prompts_done
        if self._settings.due(
            prompts_before=prompts - rows,
            prompts=prompts,
            epoch_done=epoch if end_of_epoch else None,
        ):
            await self._save_or_tell()
        await self.answer()

    async def finished(self) -> None:
        """Every epoch is trained."""
        if self._settings.periodic:
            await self._save_or_tell()
        await self.answer()

    async def answer(self) -> None:
        """Save for those who asked for it, and tell them where."""
        for request in self._control.take_checkpoint_requests():
            try:
                path = str((await self._save()).path)
            except Exception as error:
                if not request.done():
                    request.set_exception(error)
                if isinstance(error, RunSupersededError):
                    raise
            else:
                if not request.done():
                    request.set_result(path)

    async def save_rest(self) -> None:
        """The run ends early: keep what has been trained since the last checkpoint.

        Nothing is saved from within a rollout batch, whose parts are not all done.
        """
        if self._between_batches:
            await self._save_or_tell()

    def check_current(self) -> None:
        """Stop a learner that was thought dead and wakes up.

        Raises:
            RunSupersededError: A later learner has taken over the run folder.
        """
        newest, own = self._folder.incarnation, self._status.incarnation
        if newest != own:
            raise RunSupersededError(
                f"another learner has taken over run {self._folder.run_id}: its folder "
                f"{self._folder.path} follows incarnation {newest}, this learner is {own}. "
                "It stops and writes nothing more."
            )

    def _at_rest(self) -> None:
        self._random_state.hold()
        self._between_batches = True

    async def _save_or_tell(self) -> None:
        """Save; a disk that refuses does not end the run, whose work would be lost with it."""
        if self.cursor == self._newest_cursor:
            return
        try:
            await self._save()
        except RunSupersededError:
            raise
        except Exception as error:  # noqa: BLE001 - what a disk and its libraries raise is manifold
            self._record.save_failed()
            self._status.note(f"no checkpoint could be written: {type(error).__name__}: {error}")

    async def _save(self) -> Checkpoint:
        """The checkpoint of this moment, written now where there is none yet."""
        if self.current is not None:
            return self.current
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(self._write())
        with waiting_for("a checkpoint to be written"):
            saved = await asyncio.shield(self._saving)
        progressed()
        return saved

    async def _write(self) -> Checkpoint:
        self.check_current()
        start = time.monotonic()
        saved = await asyncio.to_thread(
            self._store.save,
            {
                "run_id": self._folder.run_id,
                "run_directory": str(self._folder.path.absolute()),
                "incarnation": self._status.incarnation,
                "prompts": self._record.prompts_done,
                "cursor": asdict(self.cursor),
                "description": self._description,
                "antiphon": version("antiphon"),
                "time": time.time(),
            },
            self.components,
            total_limit=self._settings.total_limit,
        )
        self._newest, self._newest_cursor = saved, self.cursor
        seconds = time.monotonic() - start
        self._record.saved(seconds)
        self._status.note(f"checkpoint: {saved.path} ({seconds:.1f} s)")
        return saved


def cursor_of(checkpoint: Checkpoint) -> Cursor:
    """How far the dataset was trained at a checkpoint."""
    return Cursor(**checkpoint.about["cursor"])
