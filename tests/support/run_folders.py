"""Reads what a run left behind, as a user's own program would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def find(directory: Path) -> Path:
    """The one run folder below `directory`."""
    found = [path.parent for path in directory.rglob("metrics.jsonl")]
    assert len(found) == 1, f"run folders below {directory}: {found}"
    return found[0]


def lines(file: Path) -> list[dict[str, Any]]:
    """The objects of a `.jsonl` file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Rows of figures."""
    return lines(folder / "metrics.jsonl")


def rollouts(folder: Path, epoch: int = 1) -> list[dict[str, Any]]:
    """Nodes of an epoch's trees."""
    return lines(folder / "rollouts" / f"epoch_{epoch}.jsonl")


def total(rows: list[dict[str, Any]], name: str) -> float:
    """Sum of a figure over the rows that have it."""
    return sum(row[name] for row in rows if name in row)


def overall_mean(rows: list[dict[str, Any]], name: str, count: str) -> float:
    """Mean of a figure over all that its rows counted under `count`."""
    weighted = sum(row[name] * row[count] for row in rows if name in row)
    return weighted / total([row for row in rows if name in row], count)
