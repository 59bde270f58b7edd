"""Writes the trees of a run as Parquet files that are whole whenever the run is killed.

A part holds several rollout batches. It is written anew with every batch, beside, and renamed, so
that at any moment each file in the folder is complete; a part that is large enough is left as it
is and the next one begins. Where batches follow each other fast, a part waits `WRITE_EVERY` seconds
for the next of them; `flush` waits for nothing. Its name tells the phase and the prompts trained
before it, so names sort by time and the whole folder reads as one table
(`pandas.read_parquet("rollouts")`).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from antiphon.learner.record.figures import NodeFigures
from antiphon.learner.record.rollout_rows import EVAL, TRAIN, rollout_table

PART_BYTES = 4 * 2**20
"""Bytes in memory from which a part is left as it is."""
PART_BATCHES = 64
"""Rollout batches after which a part is left as it is."""
WRITE_EVERY = 2.0
"""Seconds between two writes of a part, at least."""


class RolloutLog:
    """Appends rollout batches to a folder. Used from one thread.

    Args:
        folder: Holds the files; made with the first batch.
        clock: Seconds.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._part: list[pa.Table] = []
        self._part_bytes = 0
        self._part_path = folder
        self._write_at = -math.inf
        self._unwritten = False

    def write(self, nodes: Iterable[NodeFigures], *, epoch: int, prompts_before: int) -> None:
        """Add the trees of a rollout batch of training.

        Args:
            nodes: The trees' nodes, each tree in pre-order; none writes nothing.
            epoch: Counted from 1.
            prompts_before: Prompts trained before this batch.
        """
        table = rollout_table(nodes, phase=TRAIN, epoch=epoch, prompts_before=prompts_before)
        if table.num_rows == 0:
            return
        if not self._part:
            self._part_path = part_path(self._folder, TRAIN, prompts_before)
        self._part.append(table)
        self._part_bytes += table.nbytes
        self._unwritten = True
        full = len(self._part) >= PART_BATCHES or self._part_bytes >= PART_BYTES
        if full or self._clock() >= self._write_at:
            self.flush()
        if full:
            self._part, self._part_bytes = [], 0

    def flush(self) -> None:
        """Have all that was added on disk when this returns."""
        if self._unwritten:
            _write(self._part_path, pa.concat_tables(self._part).combine_chunks())
            self._unwritten = False
            self._write_at = self._clock() + WRITE_EVERY

    def write_evaluation(
        self, nodes: Iterable[NodeFigures], *, epoch: int, prompts_before: int
    ) -> None:
        """Store the trees of an evaluation, a file of its own; one made again replaces it."""
        table = rollout_table(nodes, phase=EVAL, epoch=epoch, prompts_before=prompts_before)
        if table.num_rows:
            _write(part_path(self._folder, EVAL, prompts_before), table)

    def rewind(self, prompts: int) -> None:
        """Forget what came after a checkpoint.

        Args:
            prompts: Prompts trained at the checkpoint; rollout batches that began later, and
                evaluations that were made later, are dropped.
        """
        self._part, self._part_bytes, self._unwritten = [], 0, False
        for path in part_paths(self._folder, EVAL):
            if part_start(path) > prompts:
                path.unlink()
        for path in part_paths(self._folder, TRAIN):
            if part_start(path) >= prompts:
                path.unlink()
                continue
            table = pq.read_table(path)
            kept = table.filter(pc.less(table["prompts_before"], prompts))
            if kept.num_rows < table.num_rows:
                _write(path, kept)


def part_path(folder: Path, phase: str, prompts_before: int) -> Path:
    """The file of a part that begins after so many prompts."""
    return folder / f"{phase}_{prompts_before:08}.parquet"


def part_paths(folder: Path, phase: str) -> list[Path]:
    """Files of a phase, oldest first."""
    return sorted(folder.glob(f"{phase}_*.parquet"), key=part_start)


def part_start(path: Path) -> int:
    """Prompts trained before a part began."""
    return int(path.stem.rpartition("_")[2])


def _write(path: Path, table: pa.Table) -> None:
    """Replace a file so that, whatever happens, it holds the old rows or the new ones."""
    path.parent.mkdir(exist_ok=True)
    beside = path.with_name(f".{path.name}.tmp")
    with beside.open("wb") as file:
        pq.write_table(table, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def batches(folder: Path, phase: str, columns: list[str]) -> Iterator[pa.Table]:
    """Some columns of every part of a phase, oldest first."""
    for path in part_paths(folder, phase):
        yield pq.read_table(path, columns=columns)
