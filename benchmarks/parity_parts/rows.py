"""The rows of the result: name, value, unit, what is wanted, whether it holds."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.parity_parts.faults import FAULTS
from benchmarks.parity_parts.relations import EQUAL, EVALUATION, RELATIONS, TRAINING
from benchmarks.peer import BASELINE

LIMIT = 1e-6
Row = dict[str, Any]


def machine(torch_version: str) -> str:
    """What it ran on, for the reader."""
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, one thread, "
        f"Python {platform.python_version()}, torch {torch_version}"
    )


def largest_by_name(found: Iterable[tuple[str, float]]) -> dict[str, tuple[float, int]]:
    """The largest of each quantity's numbers and how many there were."""
    largest: dict[str, tuple[float, int]] = {}
    for name, value in found:
        most, count = largest.get(name, (0.0, 0))
        largest[name] = (max(most, value), count + 1)
    return largest


def rows(
    differences: Mapping[str, tuple[float, int]],
    comlrl: Mapping[str, float | str],
    ours: Mapping[str, float | str],
    right: Mapping[str, float],
    where: str,
) -> list[Row]:
    """All rows; a quantity that nothing was measured of does not hold.

    Args:
        differences: By name of relations.EQUAL, EVALUATION, TRAINING and RELATIONS.
        comlrl: CoMLRL's number or word by name of faults.FAULTS.
        ours: Ours.
        right: The right ones that were computed on the way.
        where: The machine.
    """
    made = []
    for name, what in {**EQUAL, **EVALUATION, **TRAINING}.items():
        made.append(_difference("equal", name, what, "", differences.get(name), where))
    for name, (what, relation) in RELATIONS.items():
        made.append(_difference("relation", name, what, relation, differences.get(name), where))
    for fault in FAULTS:
        value = right[fault.name] if fault.right is None else fault.right
        made.append(
            {
                "name": fault.name,
                "kind": "fault",
                "value": ours[fault.name],
                "unit": "",
                "wanted": value,
                "holds": _same(ours[fault.name], value, fault.tolerance)
                and not _same(comlrl[fault.name], value, fault.tolerance),
                "baseline": f"{BASELINE}: {comlrl[fault.name]}",
                "machine": where,
                "what": fault.what,
                "row": fault.row,
                "by_hand": fault.how,
                "comlrl": comlrl[fault.name],
            }
        )
    return made


def _difference(
    kind: str, name: str, what: str, relation: str, found: tuple[float, int] | None, where: str
) -> Row:
    value, compared = (float("inf"), 0) if found is None else found
    return {
        "name": name,
        "kind": kind,
        "value": value if compared else None,
        "unit": "largest difference",
        "wanted": f"< {LIMIT:.0e}",
        "holds": compared > 0 and value < LIMIT,
        "baseline": BASELINE,
        "machine": where,
        "what": what,
        "relation": relation,
        "compared": compared,
    }


def _same(value: float | str, right: float | str, tolerance: float) -> bool:
    if isinstance(value, str) or isinstance(right, str):
        return value == right
    return abs(value - right) <= tolerance * max(1.0, abs(right))
