"""What a benchmark found: one JSON file a row in ``benchmarks/results``, and the same printed."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """The machine that measured: its processor, cores, load and the versions that decide speed."""
    names = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.split(":", 1)[1].strip() for line in names.splitlines() if "model name" in line]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": version("torch"),
    }


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure.

    Attributes:
        name: The row; ``benchmarks/results/<name>.json``.
        value: What was measured, in ``unit`` (a ratio to the baseline wherever there is one).
        unit: Of the value, for example ``"times"``, ``"bytes"``.
        wanted: What the value should be, in words, for example ``"at least 3"``.
        holds: Whether the value is as wanted.
        baseline: What it was measured against, in the same run.
        details: Everything behind the value: times of each side, sizes, repetitions.
    """

    name: str
    value: float
    unit: str
    wanted: str
    holds: bool
    baseline: str
    machine: dict[str, Any] = field(default_factory=machine)
    details: dict[str, Any] = field(default_factory=dict)


def require(right: bool, wrong: str) -> None:
    """Let no figure be written where a side did wrong or other work.

    Raises:
        RuntimeError: Says what was wrong.
    """
    if not right:
        raise RuntimeError(f"no figure is told: {wrong}")


def write(row: Row) -> None:
    """Print a row and keep it as ``benchmarks/results/<name>.json``."""
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps(asdict(row), indent=2, allow_nan=False)
    (FOLDER / f"{row.name}.json").write_text(text + "\n")
    verdict = "holds" if row.holds else "DOES NOT HOLD"
    print(
        f"{row.name}: {row.value:.4g} {row.unit} (wanted: {row.wanted}; {row.baseline}): {verdict}"
    )
