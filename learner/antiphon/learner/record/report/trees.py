"""The trees that a report holds, as JSON that its page draws: a sample where there are many."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from antiphon.learner.record.rollout_log import part_paths
from antiphon.learner.record.rollout_reader import (
    RecordedJointAction,
    RecordedNode,
    Tree,
    read_part,
    read_table,
)
from antiphon.learner.record.rollout_rows import EVAL, TRAIN
from antiphon.learner.record.rollouts_view import prompt_text

MOST_CHARACTERS = 6_000_000
"""Characters of text in a report; where all its trees have more, fewer trees are shown."""
MOST_TEXT = 6000
"""Characters of one text; what is longer is cut there, which is said."""


@dataclass(frozen=True)
class ShownTrees:
    """Trees for the page: `values` are JSON values, a sample of the `kept` in the run folder."""

    values: list[dict[str, Any]]
    kept: int


def shown_trees(rollouts: Path, most: int) -> ShownTrees:
    """Pick trees spread evenly over the run, the first and the last among them.

    Args:
        rollouts: The run's folder of trees.
        most: How many at most; 0 for all of them, whatever their size.
    """
    places = _places(rollouts)
    picked = list(islice(_spread(len(places)), most or None))
    values = _values(places, picked)
    shown: list[int] = []
    characters = 0
    for number in picked:
        shown.append(number)
        characters += len(json.dumps(values[number]))
        if most and characters > MOST_CHARACTERS:
            break
    return ShownTrees([values[number] for number in sorted(shown)], len(places))


def _values(places: Sequence[tuple[Path, int]], picked: Sequence[int]) -> dict[int, Any]:
    """The picked trees; each file is read once."""
    values: dict[int, Any] = {}
    for path, numbers in groupby(sorted(picked), lambda number: places[number][0]):
        part = list(read_part(path))
        values |= {number: _tree(part[places[number][1]]) for number in numbers}
    return values


def _places(rollouts: Path) -> list[tuple[Path, int]]:
    """Where every tree is: its file, and its number there; evaluations come last."""
    places: list[tuple[Path, int]] = []
    for phase in (TRAIN, EVAL):
        for path in part_paths(rollouts, phase):
            table = read_table(path, columns=["epoch", "prompts_before", "row"])
            keys = dict.fromkeys(tuple(row.values()) for row in table.to_pylist())
            places += [(path, place) for place in range(len(keys))]
    return places


def _spread(count: int) -> Iterator[int]:
    """All numbers below `count`: the last, the first, then ever finer steps between them."""
    given: set[int] = set()
    steps = 1
    while len(given) < count:
        for index in range(steps, -1, -1):
            number = round((count - 1) * index / steps)
            if number not in given:
                given.add(number)
                yield number
        steps *= 2


def _tree(tree: Tree) -> dict[str, Any]:
    root = tree[0]
    return {
        "phase": root.phase,
        "epoch": root.epoch,
        "before": root.prompts_before,
        "row": root.row,
        "task": root.task,
        "nodes": [_node(node) for node in tree],
    }


def _node(node: RecordedNode) -> dict[str, Any]:
    """A node; its answers stand once each, joint actions name them by number."""
    answers: list[dict[int, Any]] = [{} for _ in node.prompts]
    for action in node.joint_actions:
        for answer in action.answers:
            answers[answer.agent].setdefault(
                answer.sample,
                {
                    "text": _cut(answer.text),
                    "tokens": answer.tokens,
                    "advantage": answer.advantage,
                    "logprob": round(answer.logprob, 3),
                    "kl": answer.reference_kl,
                    "versions": answer.weights_versions,
                    "finish": answer.finish,
                },
            )
    return {
        "path": node.path,
        "turn": node.turn,
        "prompts": [_cut(prompt_text(prompt)) for prompt in node.prompts],
        "dead": node.dead,
        "answers": answers,
        "actions": [_action(action) for action in node.joint_actions],
    }


def _action(action: RecordedJointAction) -> dict[str, Any]:
    value: dict[str, Any] = {
        "samples": [answer.sample for answer in action.answers],
        "reward": action.reward,
        "return": action.return_,
    }
    optional = {
        "components": dict(action.components),
        "roles": [_cut(text) for text in action.role_texts],
        "missing": action.missing_reason,
        "stop": action.stop,
        "detail": action.stop_detail,
        "info": None if action.info is None else json.dumps(action.info, ensure_ascii=False),
    }
    return value | {name: given for name, given in optional.items() if given}


def _cut(text: str) -> str:
    if len(text) <= MOST_TEXT:
        return text
    return f"{text[:MOST_TEXT]} [cut here, {len(text) - MOST_TEXT:,} more characters]"
