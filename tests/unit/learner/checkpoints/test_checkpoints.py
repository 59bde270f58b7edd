"""When a run is saved: when due, when asked, when it ends early; and never in between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.clients.types import FieldError
from antiphon.learner.checkpoints.checkpoints import Checkpoints, Cursor, cursor_of
from antiphon.learner.checkpoints.random_state import kept_generators
from antiphon.learner.checkpoints.store import Checkpoint, CheckpointStore
from antiphon.learner.config.checkpoints import CheckpointSettings, checkpoint_settings
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.control.control import RunControl, StoppedError
from antiphon.learner.record.run_folder import RunFolder
from antiphon.learner.weights.replicas import RunSupersededError


class Count:
    """A component that counts; the record of these runs too."""

    def __init__(self) -> None:
        self.prompts_done = 0
        self.begun_anew = False
        self.saves = self.failures = 0

    def state_dict(self) -> Mapping[str, Any]:
        return {"prompts_done": self.prompts_done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.prompts_done = state["prompts_done"]

    def begin_anew(self) -> None:
        self.begun_anew = True

    def saved(self, seconds: float) -> None:
        self.saves += 1

    def save_failed(self) -> None:
        self.failures += 1


class Run:
    """A run of nothing but its checkpoints, in `folder`; `batch` trains some prompts."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        resume: Checkpoint | None = None,
        store: CheckpointStore | None = None,
        **settings: Any,
    ) -> None:
        self.folder, self.record, self.policy = folder, Count(), Count()
        self.notes: list[str] = []
        self.control = RunControl()
        self.status = SimpleNamespace(incarnation=0, note=self.notes.append)
        self.store = store or CheckpointStore(folder.path / "checkpoints")
        self.checkpoints = Checkpoints(
            folder,
            CheckpointSettings(**{"every_epochs": 0, **settings}),
            description={"magrpo": {"seed": 1}},
            record=self.record,  # type: ignore[arg-type]
            status=self.status,  # type: ignore[arg-type]
            control=self.control,
            resume=resume,
            store=self.store,
        )
        self.checkpoints.add("policy", [self.policy])

    async def start(self) -> None:
        self.status.incarnation = self.folder.next_incarnation(0)
        await self.checkpoints.restore()
        self.checkpoints.ready()

    async def batch(self, epoch: int, rows: int, *, end_of_epoch: bool = False) -> None:
        self.checkpoints.batch_begins()
        self.policy.prompts_done += 10 * rows
        self.record.prompts_done += rows
        self.checkpoints.batch_trained(epoch, rows, end_of_epoch=end_of_epoch)
        await self.checkpoints.batch_done(epoch, rows, end_of_epoch=end_of_epoch)

    def saved(self) -> list[int]:
        return sorted(checkpoint.prompts for checkpoint in self.store.complete()[0])


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "run")


async def test_a_checkpoint_is_due_at_the_end_of_every_so_many_epochs(folder: RunFolder) -> None:
    run = Run(folder, every_epochs=2, total_limit=None)
    await run.start()
    for epoch in range(1, 6):
        await run.batch(epoch, 2)
        await run.batch(epoch, 1, end_of_epoch=True)
    assert run.saved() == [6, 12]
    await run.checkpoints.finished()
    assert run.saved() == [6, 12, 15]


async def test_a_checkpoint_is_due_once_so_many_prompts_have_passed(folder: RunFolder) -> None:
    run = Run(folder, every_prompts=4, total_limit=None)
    await run.start()
    for _ in range(5):
        await run.batch(1, 3)
    assert run.saved() == [6, 9, 12]


async def test_without_a_period_only_the_end_before_time_is_saved(folder: RunFolder) -> None:
    run = Run(folder)
    await run.start()
    await run.batch(1, 3, end_of_epoch=True)
    await run.checkpoints.finished()
    assert run.saved() == []
    await run.checkpoints.save_rest()
    assert run.saved() == [3]


async def test_what_is_trained_already_is_not_saved_twice(folder: RunFolder) -> None:
    run = Run(folder, every_epochs=1)
    await run.start()
    await run.checkpoints.save_rest()
    assert run.saved() == []
    await run.batch(1, 3, end_of_epoch=True)
    await run.checkpoints.finished()
    await run.checkpoints.save_rest()
    assert [path.name for path in run.store.directory.iterdir()] == ["checkpoint-00000003"]


async def test_nothing_is_saved_in_the_middle_of_a_batch(folder: RunFolder) -> None:
    """An update that broke off has changed some parts and not others."""
    run = Run(folder)
    await run.checkpoints.save_rest()
    await run.start()
    await run.batch(1, 3)
    run.checkpoints.batch_begins()
    run.policy.prompts_done += 1
    await run.checkpoints.save_rest()
    assert run.saved() == []


async def test_a_resumed_run_goes_on_where_its_checkpoint_was_taken(folder: RunFolder) -> None:
    """S12: parts and cursor are those of the last prompt trained."""
    first = Run(folder, every_prompts=1)
    await first.start()
    await first.batch(1, 2)
    await first.batch(1, 2)
    checkpoint, _ = first.store.newest()
    assert checkpoint is not None
    assert cursor_of(checkpoint) == Cursor(1, 4)

    second = Run(folder, resume=checkpoint, every_prompts=1)
    assert second.checkpoints.cursor == Cursor(1, 4)
    await second.start()
    assert (second.policy.prompts_done, second.record.prompts_done) == (40, 4)
    assert not second.record.begun_anew
    await second.batch(1, 1, end_of_epoch=True)
    assert second.checkpoints.cursor == Cursor(1, 5, epoch_done=True)
    newest, _ = second.store.newest()
    assert newest is not None
    assert (newest.incarnation, newest.about["description"]) == (2, {"magrpo": {"seed": 1}})


async def test_a_run_without_a_checkpoint_forgets_what_was_written_down(folder: RunFolder) -> None:
    run = Run(folder)
    await run.start()
    assert run.record.begun_anew


async def test_a_part_that_is_new_to_a_checkpoint_starts_as_it_was_made(folder: RunFolder) -> None:
    first = Run(folder)
    await first.start()
    await first.batch(1, 2)
    await first.checkpoints.save_rest()
    second = Run(folder, resume=first.store.newest()[0])
    new = Count()
    new.prompts_done = 7
    second.checkpoints.add("scheduler", [new])
    await second.start()
    assert (second.policy.prompts_done, new.prompts_done) == (20, 7)


async def test_draws_for_a_prompt_that_is_not_trained_are_drawn_again(folder: RunFolder) -> None:
    """S12: what ends the run early is saved after them; prompts are tried before the first."""
    first = Run(folder)
    with kept_generators():
        await first.start()
        await first.batch(1, 2)
        wanted = random.random()
        await first.checkpoints.save_rest()

        second = Run(folder, resume=first.store.newest()[0])
        await second.checkpoints.restore()
        random.random()
        await second.start()
        assert random.random() == wanted


async def test_a_checkpoint_without_random_generators_leaves_them_alone(folder: RunFolder) -> None:
    first = Run(folder)
    await first.start()
    del first.checkpoints.components["random_state"]
    await first.batch(1, 2)
    await first.checkpoints.save_rest()
    checkpoint = first.store.newest()[0]
    assert checkpoint is not None
    assert not checkpoint.holds("random_state")
    with kept_generators():
        random.seed(1)
        wanted = random.random()
        random.seed(1)
        await Run(folder, resume=checkpoint).start()
        assert random.random() == wanted


async def test_who_asks_is_told_the_path_after_the_next_publish(folder: RunFolder) -> None:
    run = Run(folder)
    await run.start()
    first, second = run.control.ask_checkpoint(), run.control.ask_checkpoint()
    run.checkpoints.batch_begins()
    assert not first.done()
    run.record.prompts_done = 2
    run.checkpoints.batch_trained(1, 2, end_of_epoch=False)
    await run.checkpoints.batch_done(1, 2, end_of_epoch=False)
    assert first.result() == second.result()
    assert first.result() == str(run.store.directory / "checkpoint-00000002")
    assert run.saved() == [2]


async def test_who_asks_in_vain_is_told_that_the_run_has_ended(folder: RunFolder) -> None:
    run = Run(folder)
    await run.start()
    before = run.control.ask_checkpoint()
    run.control.end()
    for asked in (before, run.control.ask_checkpoint()):
        with pytest.raises(StoppedError, match="the run has ended"):
            await asked


async def test_a_disk_that_refuses_is_told_and_does_not_end_the_run(folder: RunFolder) -> None:
    class Full(CheckpointStore):
        def save(self, *_: Any, **__: Any) -> Checkpoint:
            raise OSError("no space left on device")

    run = Run(folder, store=Full(folder.path), every_prompts=1)
    await run.start()
    asked = run.control.ask_checkpoint()
    await run.batch(1, 1)
    assert "no checkpoint could be written: OSError: no space left" in run.notes[0]
    assert (run.record.saves, run.record.failures) == (0, 1)
    with pytest.raises(OSError, match="no space"):
        await asked
    await run.batch(1, 1)


async def test_a_save_that_is_cancelled_is_finished_once(folder: RunFolder) -> None:
    """A child that dies while a checkpoint is written ends the run, which saves what is left."""
    reached, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def after(step: str) -> None:
        if step == "marked":
            loop.call_soon_threadsafe(reached.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(30)

    store = CheckpointStore(folder.path / "checkpoints", after)
    run = Run(folder, store=store, every_prompts=1)
    await run.start()
    async with asyncio.timeout(30):
        batch = asyncio.create_task(run.batch(1, 2))
        await reached.wait()
        batch.cancel()
        await asyncio.gather(batch, return_exceptions=True)
        rest = asyncio.create_task(run.checkpoints.save_rest())
        await asyncio.sleep(0)
        go_on.set()
        await rest
    assert [path.name for path in store.directory.iterdir()] == ["checkpoint-00000002"]


async def test_a_learner_that_wakes_up_behind_a_later_one_writes_nothing(
    folder: RunFolder,
) -> None:
    """S7: the folder follows the higher incarnation; the lower one is told and stops."""
    old = Run(folder, every_prompts=1)
    await old.start()
    await Run(RunFolder.open(folder.path)).start()
    with pytest.raises(RunSupersededError, match=r"incarnation 2, this learner is 1"):
        await old.batch(1, 1)
    assert old.record.prompts_done == 0
    old.checkpoints.batch_trained(1, 1, end_of_epoch=False)
    with pytest.raises(RunSupersededError):
        await old.checkpoints.save_rest()
    assert old.saved() == []


@pytest.mark.parametrize(
    ("cursor", "finished"),
    [
        (Cursor(), False),
        (Cursor(2, 3), False),
        (Cursor(2, 3, epoch_done=True), True),
        (Cursor(3, 1), True),
    ],
)
def test_a_cursor_knows_whether_anything_is_left_of_two_epochs(
    cursor: Cursor, finished: bool
) -> None:
    """S12: at or past the last step."""
    assert cursor.finished(2) is finished


def test_the_config_says_when_and_how_many() -> None:
    assert checkpoint_settings(MAGRPOConfig()) == CheckpointSettings(1, None, 2, None)
    config = MAGRPOConfig(
        checkpoint_interval=0, checkpoint_every_prompts=50, checkpoint_total_limit=None
    )
    assert checkpoint_settings(config) == CheckpointSettings(0, 50, None, None)
    assert not CheckpointSettings(every_epochs=0).periodic
    assert CheckpointSettings(every_epochs=0, every_prompts=1).periodic


def test_what_train_is_told_wins_and_with_a_folder_it_means_what_it_does_in_comlrl(
    tmp_path: Path,
) -> None:
    config = MAGRPOConfig(checkpoint_interval=3)
    assert checkpoint_settings(config, interval=5, total_limit=1) == CheckpointSettings(5, None, 1)
    assert checkpoint_settings(config, directory=tmp_path) == CheckpointSettings(
        1, None, None, tmp_path
    )
    with pytest.raises(FieldError, match="checkpoint_interval"):
        checkpoint_settings(config, interval=0)
