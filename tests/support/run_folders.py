"""Reads what a run left behind, as a user's own program would."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq


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
    """Nodes of an epoch's trees, put together from rows of joint actions."""
    rows = [row for row in rollout_rows(folder) if (row["phase"], row["epoch"]) == ("train", epoch)]
    keys = [(row["prompts_before"], row["row"], tuple(row["path"])) for row in rows]
    of_node: dict[Any, list[dict[str, Any]]] = {key: [] for key in keys}
    for key, row in zip(keys, rows, strict=True):
        of_node[key].append(row)
    return [_node(joint_actions) for joint_actions in of_node.values()]


def rollout_rows(folder: Path) -> list[dict[str, Any]]:
    """Joint actions of all trees."""
    files = sorted((folder / "rollouts").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def _node(rows: list[dict[str, Any]]) -> dict[str, Any]:
    first = rows[0]
    agents = []
    for agent, prompt in enumerate(first["prompts"]):
        completions = {
            row["samples"][agent]: {
                "text": row["texts"][agent],
                "return": row["agent_returns"][agent],
                "advantage": row["advantages"][agent],
                "weights_versions": row["weights_versions"][agent],
            }
            for row in rows
        }
        agents.append(
            {
                "prompt": json.loads(prompt) if first["chat"][agent] else prompt,
                "dead": first["dead"][agent],
                "completions": [completions[sample] for sample in sorted(completions)],
            }
        )
    return {
        **{name: first[name] for name in ("epoch", "row", "task", "turn", "path")},
        "mean_reward": _mean([row["reward"] for row in rows]),
        "mean_return": _mean([row["return"] for row in rows]),
        "agents": agents,
        "joint_actions": rows,
    }


def _mean(values: list[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None


def total(rows: list[dict[str, Any]], name: str) -> float:
    """Sum of a figure over the rows that have it."""
    return sum(float(row[name]) for row in rows if name in row)


def overall_mean(rows: list[dict[str, Any]], name: str, count: str) -> float:
    """Mean of a figure over all that its rows counted under `count`."""
    weighted = sum(float(row[name]) * float(row[count]) for row in rows if name in row)
    return weighted / total([row for row in rows if name in row], count)
