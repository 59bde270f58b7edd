"""Checkpoints on disk: whole or not at all, damage recognised, the newest always there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.processes import QUIET

from antiphon.clients.types import FieldError
from antiphon.learner.checkpoints.store import (
    CheckpointStore,
    DamagedError,
    read_checkpoint,
)

STEPS = ["component", "component", "marked", "flushed", "renamed", "pruned"]


class Part:
    """A component with a tensor and a number."""

    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def state_dict(self) -> Mapping[str, Any]:
        return {"weights": torch.full((8,), self.value), "value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value = state["value"]
        assert torch.equal(state["weights"], torch.full((8,), self.value))


def save(
    store: CheckpointStore,
    prompts: int,
    *,
    run_id: str = "run",
    incarnation: int = 1,
    total_limit: int | None = None,
) -> Path:
    about = {"run_id": run_id, "incarnation": incarnation, "prompts": prompts}
    parts = {"policy_0": Part(prompts), "policy_1": Part(-prompts)}
    return store.save(about, parts, total_limit=total_limit).path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_gives_back_what_was_saved(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    path = save(store, 12)
    found, notes = store.newest()
    assert found is not None
    assert (found.path, found.run_id, found.incarnation, found.prompts) == (path, "run", 1, 12)
    assert notes == []
    part = Part()
    part.load_state_dict(found.state("policy_1"))
    assert part.value == -12
    assert found.holds("policy_0")
    assert not found.holds("scheduler")


def test_nothing_in_a_checkpoint_is_pickled(tmp_path: Path) -> None:
    path = save(CheckpointStore(tmp_path), 1)
    assert {file.suffix for file in path.iterdir()} == {".json", ".safetensors"}


def files_of(path: Path) -> list[Path]:
    return sorted(path.iterdir())


@pytest.mark.parametrize("number", range(6))
def test_a_file_that_is_cut_short_or_changed_or_gone_is_damage_and_the_one_before_is_taken(
    tmp_path: Path, number: int
) -> None:
    """S12: a checkpoint cut short by a kill is not loaded."""
    damages: list[tuple[str, Callable[[Path], object]]] = [
        ("cut", lambda file: os.truncate(file, file.stat().st_size - 2)),
        ("emptied", lambda file: os.truncate(file, 0)),
        ("flipped", flip_a_byte),
        ("gone", lambda file: file.unlink()),
    ]
    for name, damage in damages:
        store = CheckpointStore(tmp_path / name)
        older = save(store, 1)
        newer = save(store, 2)
        assert len(files_of(newer)) == 6
        damage(files_of(newer)[number])
        found, notes = store.newest()
        assert found is not None
        assert found.path == older, name
        assert len(notes) == 1
        assert str(newer) in notes[0]
        with pytest.raises(DamagedError, match=r"damaged|unfinished"):
            read_checkpoint(newer)


def flip_a_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    # Blanks of the mark may be anything; each other byte counts.
    place = next(i for i in range(len(data) // 2, len(data)) if data[i : i + 1].isalnum())
    data[place] ^= 1
    file.write_bytes(data)


def test_a_checkpoint_of_another_format_is_not_guessed_at(tmp_path: Path) -> None:
    path = save(CheckpointStore(tmp_path), 1)
    mark = path / "complete.json"
    mark.write_text(mark.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(DamagedError, match="has format 2, wanted 1"):
        read_checkpoint(path)


KILLED = """
import os, signal, sys
from pathlib import Path
from antiphon.learner.checkpoints.store import CheckpointStore
from tests.unit.learner.checkpoints.test_store import save

folder, stop = Path(sys.argv[1]), int(sys.argv[2])
save(CheckpointStore(folder), 1)
done = []

def after(step):
    done.append(step)
    if len(done) == stop:
        os.kill(os.getpid(), signal.SIGKILL)

save(CheckpointStore(folder, after), 2, total_limit=1)
"""


@pytest.mark.parametrize("stop", range(1, len(STEPS) + 1))
def test_a_save_that_is_killed_leaves_the_old_checkpoint_or_the_new_one(
    tmp_path: Path, stop: int
) -> None:
    """S12: killed after each step; the next save clears away what was left."""
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(stop)],
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    store = CheckpointStore(tmp_path)
    found, notes = store.newest()
    assert found is not None
    assert found.prompts == (2 if stop >= STEPS.index("renamed") + 1 else 1)
    assert notes == []
    save(store, 3, total_limit=1)
    assert names(tmp_path) == ["checkpoint-00000003"]


def test_a_save_tells_its_steps(tmp_path: Path) -> None:
    done: list[str] = []
    save(CheckpointStore(tmp_path, done.append), 1)
    assert done == STEPS


def test_a_save_that_fails_leaves_nothing_behind_and_what_was_there(tmp_path: Path) -> None:
    class Broken(Part):
        def state_dict(self) -> Mapping[str, Any]:
            raise OSError("no space left on device")

    store = CheckpointStore(tmp_path)
    save(store, 1)
    about = {"run_id": "run", "incarnation": 1, "prompts": 2}
    with pytest.raises(OSError, match="no space"):
        store.save(about, {"policy_0": Part(), "policy_1": Broken()}, total_limit=1)
    assert names(tmp_path) == ["checkpoint-00000001"]


def test_the_newest_are_kept_up_to_the_limit(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for prompts in (2, 4, 6):
        save(store, prompts, total_limit=2)
    assert names(tmp_path) == ["checkpoint-00000004", "checkpoint-00000006"]
    save(store, 8, total_limit=1)
    assert names(tmp_path) == ["checkpoint-00000008"]
    save(store, 10)
    assert names(tmp_path) == ["checkpoint-00000008", "checkpoint-00000010"]


def test_a_damaged_one_is_not_counted_so_the_last_whole_one_is_never_pruned(
    tmp_path: Path,
) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    (save(store, 2) / "complete.json").unlink()
    save(store, 3, total_limit=2)
    assert names(tmp_path) == [
        "checkpoint-00000001",
        "checkpoint-00000002",
        "checkpoint-00000003",
    ]


def test_checkpoints_of_other_runs_are_not_pruned_but_are_told(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1, run_id="another")
    save(store, 2, total_limit=1)
    assert len(names(tmp_path)) == 2
    found, _ = store.newest("another")
    assert found is not None
    assert found.prompts == 1
    assert store.newest("a third")[0] is None
    with pytest.raises(FieldError, match=r"checkpoint-00000001 of run another"):
        store.refuse_others("run")


def test_a_later_learner_s_checkpoint_is_newer_whatever_its_number(tmp_path: Path) -> None:
    """A run that was resumed from an older checkpoint goes on from where it is now."""
    store = CheckpointStore(tmp_path)
    save(store, 4, incarnation=1)
    save(store, 8, incarnation=1)
    save(store, 6, incarnation=2)
    found, _ = store.newest()
    assert found is not None
    assert (found.incarnation, found.prompts) == (2, 6)
    again = save(store, 8, incarnation=2)
    assert again.name == "checkpoint-00000008-2"
    assert (tmp_path / "checkpoint-00000008").is_dir()


def test_a_folder_without_checkpoints_has_no_newest(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "none").newest() == (None, [])
