"""Reads the trees that a run wrote down, without torch, while it runs or afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from antiphon.clients.types import FieldError
from antiphon.learner.record.rollout_log import part_paths
from antiphon.learner.record.rollout_rows import TRAIN

Prompt = str | list[dict[str, str]]


@dataclass(frozen=True)
class Answer:
    """One agent's part of a joint action.

    `logprob` is the sum over its tokens, `reference_kl` None where no reference is held.
    """

    agent: int
    sample: int
    text: str
    tokens: int
    finish: str
    return_: float | None
    advantage: float | None
    logprob: float
    reference_kl: float | None
    weights_versions: tuple[int, ...]


@dataclass(frozen=True)
class RecordedJointAction:
    """One joint action as it was written down; names as in `rollout_rows`."""

    index: int
    id: str
    answers: tuple[Answer, ...]
    reward: float | None
    score: float | None
    components: Mapping[str, float]
    info: Any
    missing_reason: str | None
    return_: float | None
    stop: str | None
    stop_detail: str | None
    role_texts: tuple[str, ...]


@dataclass(frozen=True)
class RecordedNode:
    """One node as it was written down; `prompts` and `dead` are by agent [N]."""

    phase: str
    epoch: int
    prompts_before: int
    row: int
    task: str
    turn: int
    path: tuple[int, ...]
    prompts: tuple[Prompt, ...]
    dead: tuple[bool, ...]
    joint_actions: tuple[RecordedJointAction, ...]

    @property
    def mean_reward(self) -> float | None:
        """Mean over the joint actions that have a reward."""
        return _mean([action.reward for action in self.joint_actions])

    @property
    def mean_return(self) -> float | None:
        """Mean over the joint actions that have a return."""
        return _mean([action.return_ for action in self.joint_actions])


Tree = list[RecordedNode]
"""The nodes of one task's tree, in pre-order."""


def read_trees(
    folder: Path,
    *,
    phase: str = TRAIN,
    epoch: int | None = None,
    row: int | None = None,
    newest_first: bool = False,
) -> Iterator[Tree]:
    """The trees of a run, one after the other.

    Args:
        folder: The run's `rollouts` folder.
        phase: `TRAIN` or `EVAL`.
        epoch: Only trees of this epoch.
        row: Only trees of this row of the dataset.
        newest_first: In the order in which they were trained, or from its end.
    """
    paths = part_paths(folder, phase)
    for path in reversed(paths) if newest_first else paths:
        table = read_table(path)
        for column, wanted in (("epoch", epoch), ("row", row)):
            if wanted is not None:
                table = table.filter(pc.equal(table[column], wanted))
        trees = _trees(table)
        yield from reversed(list(trees)) if newest_first else trees


def read_part(path: Path) -> Iterator[Tree]:
    """The trees of one file."""
    return _trees(read_table(path))


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """The rows of one file.

    Raises:
        FieldError: The file is damaged.
    """
    try:
        return pq.read_table(path, columns=columns)
    except pa.ArrowInvalid as error:
        raise FieldError(
            str(path), f"a damaged file ({error})", "a whole Parquet file; move it away to read on"
        ) from error


def _trees(table: pa.Table) -> Iterator[Tree]:
    for _, of_tree in groupby(
        table.to_pylist(), lambda r: (r["epoch"], r["prompts_before"], r["row"])
    ):
        yield [_node(list(rows)) for _, rows in groupby(of_tree, lambda r: r["path"])]


def _node(rows: list[dict[str, Any]]) -> RecordedNode:
    first = rows[0]
    return RecordedNode(
        phase=first["phase"],
        epoch=first["epoch"],
        prompts_before=first["prompts_before"],
        row=first["row"],
        task=first["task"],
        turn=first["turn"],
        path=tuple(first["path"]),
        prompts=tuple(
            json.loads(prompt) if chat else prompt
            for prompt, chat in zip(first["prompts"], first["chat"], strict=True)
        ),
        dead=tuple(first["dead"]),
        joint_actions=tuple(_joint_action(row) for row in rows),
    )


def _joint_action(row: dict[str, Any]) -> RecordedJointAction:
    return RecordedJointAction(
        index=row["joint_action"],
        id=row["id"],
        answers=tuple(_answer(row, agent) for agent in range(len(row["samples"]))),
        reward=row["reward"],
        score=row["score"],
        components=dict(row["components"]),
        info=None if row["info"] is None else json.loads(row["info"]),
        missing_reason=row["missing_reason"],
        return_=row["return"],
        stop=row["stop"],
        stop_detail=row["stop_detail"],
        role_texts=tuple(row["role_texts"]),
    )


def _answer(row: dict[str, Any], agent: int) -> Answer:
    return Answer(
        agent=agent,
        sample=row["samples"][agent],
        text=row["texts"][agent],
        tokens=len(row["token_ids"][agent]),
        finish=row["finish"][agent],
        return_=row["agent_returns"][agent],
        advantage=row["advantages"][agent],
        logprob=sum(row["logprobs"][agent]),
        reference_kl=row["reference_kls"][agent] if row["reference_kls"] else None,
        weights_versions=tuple(row["weights_versions"][agent]),
    )


def _mean(values: list[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None
