"""What a run folder holds, as far as it got: a run that trains or was killed has a report too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from antiphon.clients.types import FieldError
from antiphon.learner.record.rollout_log import batches
from antiphon.learner.record.rollout_rows import TRAIN
from antiphon.learner.record.run_folder import RunFolder, json_object

COUNTERS = ("joint_actions", "epoch", "prompts", "time", "elapsed_seconds")
_COLUMNS = ["epoch", "prompts_before", "row", "turn", "path", "joint_action", "reward"]

Point = tuple[float, float]
"""Joint actions so far, and the figure."""


@dataclass(frozen=True)
class TreeRewards:
    """Rewards of one tree: by node (its path), in order of joint action; None is missing."""

    epoch: int
    prompts_before: int
    row: int
    rewards: Mapping[tuple[int, ...], list[float | None]]


@dataclass(frozen=True)
class RunData:
    """A run as its folder tells it.

    Attributes:
        name: Name of the folder.
        config: config.json, empty where it is not there.
        summary: summary.json, None where the run has not ended.
        rows: Lines of metrics.jsonl.
    """

    name: str
    path: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    rows: list[dict[str, Any]]

    @property
    def rollouts(self) -> Path:
        """Folder of the trees."""
        return self.path / "rollouts"

    def counter(self, name: str) -> float:
        """A counter at the last row, 0 where there is none."""
        return float(self.rows[-1][name]) if self.rows else 0.0

    def curves(self) -> dict[str, list[Point]]:
        """Every figure over joint actions, by name."""
        curves: dict[str, list[Point]] = defaultdict(list)
        for row in self.rows:
            for name, value in row.items():
                if name not in COUNTERS and isinstance(value, (int, float)):
                    curves[name].append((float(row["joint_actions"]), float(value)))
        return dict(curves)

    def stage_seconds(self) -> dict[str, float]:
        """Seconds in which each stage was under way, over the whole run."""
        seconds: dict[str, float] = defaultdict(float)
        for row in self.rows:
            for name, value in row.items():
                if name.startswith("seconds/") and value is not None:
                    seconds[name.removeprefix("seconds/")] += value
        return dict(seconds)

    def tree_rewards(self) -> Iterator[TreeRewards]:
        """Rewards of every tree that was kept, oldest first."""
        for table in batches(self.rollouts, TRAIN, _COLUMNS):
            for key, rows in groupby(
                table.to_pylist(), lambda r: (r["epoch"], r["prompts_before"], r["row"])
            ):
                rewards: dict[tuple[int, ...], list[float | None]] = defaultdict(list)
                for row in rows:
                    rewards[tuple(row["path"])].append(row["reward"])
                yield TreeRewards(*key, rewards)


def read_run(path: Path) -> RunData:
    """Read a run folder.

    Raises:
        FieldError: It is not the folder of a run, or a file in it is damaged.
    """
    folder = RunFolder.open(path)
    return RunData(
        name=path.resolve().name,
        path=folder.path,
        config=_json(path / "config.json") or {},
        summary=_json(path / "summary.json"),
        rows=_rows(folder.metrics_file),
    )


def _json(path: Path) -> dict[str, Any] | None:
    return json_object(path.read_bytes(), str(path)) if path.is_file() else None


def _rows(path: Path) -> list[dict[str, Any]]:
    """Lines of a file that may still grow: a last line that is not whole yet is left out."""
    if not path.is_file():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    rows = []
    for number, line in enumerate(whole.split(b"\n") if whole else (), 1):
        where = f"{path}, line {number}"
        row = json_object(line, where)
        if missing := [name for name in COUNTERS if not isinstance(row.get(name), (int, float))]:
            raise FieldError(where, f"no {', '.join(missing)}", "a row of figures; cut it out")
        rows.append(row)
    return rows
