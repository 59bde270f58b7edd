"""The curves of docs/scale.svg: seconds per step, and what bounds it, a column per model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from benchmarks.cluster_sim_parts.scale import DESIGNS
from matplotlib.figure import Figure

COLOURS = ("#c2410c", "#f59e0b", "#1d4ed8", "#0d9488")
SHARES = {
    "engines idle": ("engines_idle", "#64748b"),
    "event loop of the learner": ("loop", "#7c3aed"),
    "link of the learner": ("link", "#c2410c"),
}
SHOWN = DESIGNS[2].name
"""The design whose shares are drawn."""


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the curves."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    with mpl.rc_context({"svg.hashsalt": "antiphon", "font.size": 9, "svg.fonttype": "none"}):
        figure = Figure(figsize=(11, 6.4), layout="constrained")
        panels = figure.subplots(2, len(models), sharex=True)
        for column, model in enumerate(models):
            mine = [row for row in rows if row["model"] == model]
            _steps(panels[0][column], mine, f"{model}: seconds per step")
            _shares(panels[1][column], [row for row in mine if row["design"] == SHOWN])
        for row, columns in ((0, 2), (1, 3)):
            handles, labels = panels[row][0].get_legend_handles_labels()
            where = "outside upper center" if row == 0 else "outside lower center"
            figure.legend(handles, labels, loc=where, ncols=2 * columns, frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line.rstrip() for line in lines) + "\n")


def _steps(panel: Any, rows: Sequence[dict[str, Any]], title: str) -> None:
    for design, colour in zip(DESIGNS, COLOURS, strict=True):
        mine = [row for row in rows if row["design"] == design.name]
        panel.loglog(
            [row["replicas"] for row in mine],
            [row["step"] for row in mine],
            marker="o",
            markersize=3,
            color=colour,
            label=design.name,
        )
    panel.set_title(title)
    panel.grid(visible=True, alpha=0.3)


def _shares(panel: Any, rows: Sequence[dict[str, Any]]) -> None:
    for label, (name, colour) in SHARES.items():
        panel.semilogx(
            [row["replicas"] for row in rows],
            [row[name] for row in rows],
            marker="o",
            markersize=3,
            color=colour,
            label=label,
        )
    panel.set_ylim(-0.03, 1.03)
    panel.set_title(f"shares of the time ({SHOWN})", fontsize=9)
    panel.set_xlabel("replicas of both agents together")
    panel.grid(visible=True, alpha=0.3)
