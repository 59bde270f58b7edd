"""Draws the data behind the main panels, as a Prometheus has it, into one picture.

    python -m k8s.monitoring.picture http://localhost:9090 picture.svg --minutes 60

The picture is plain SVG, so it needs no plotting library.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from k8s.monitoring.queries import PanelQuery, panel_queries

PANELS = (
    ("Overview", "Expected return"),
    ("Overview", "Groups that teach nothing"),
    ("Overview", "Time by stage"),
    ("Learning", "Entropy"),
    ("Learning", "Log-probability gap, mean"),
    ("Learning", "Evaluation"),
    ("Rollouts", "Tokens out"),
    ("Rollouts", "Request"),
    ("Services", "Time of an answer"),
    ("Weights", "Version at the replicas"),
    ("Weights", "Time of a publish"),
    ("Services", "Memory"),
)
COLOURS = ("#3b82f6", "#f97316", "#10b981", "#a855f7", "#ef4444", "#eab308", "#06b6d4", "#64748b")
COLUMNS, WIDTH, HEIGHT, LEFT, TOP, LINE = 3, 300, 130, 56, 34, 14
POINTS = 150
STYLE = """
text { font: 11px system-ui, sans-serif; fill: #6b7280 }
.title { font-size: 13px; font-weight: 600; fill: #374151 }
.grid { stroke: #9ca3af; stroke-width: 0.5; opacity: 0.5 }
@media (prefers-color-scheme: dark) { .title { fill: #e5e7eb } text { fill: #9ca3af } }
"""


@dataclass(frozen=True)
class Curve:
    """One series: its name, and (seconds since 1970, value) pairs."""

    name: str
    points: list[tuple[float, float]]


def draw(url: str, file: Path, *, since: float, until: float) -> None:
    """Ask a Prometheus for the data of `PANELS` and write the picture.

    Args:
        url: Where the Prometheus is.
        file: What is written.
        since: Begin of the range, seconds since 1970.
        until: Its end.

    Raises:
        ValueError: A panel is not in the dashboards, or has no data in the range.
    """
    step = max(1.0, (until - since) / POINTS)
    interval = f"{max(15, math.ceil(4 * step))}s"
    queries = list(panel_queries(interval))
    panels = []
    for dashboard, title in PANELS:
        own = [q for q in queries if (q.dashboard, q.panel) == (f"antiphon / {dashboard}", title)]
        if not own:
            raise ValueError(f"no dashboard {dashboard} with a panel {title}")
        curves = [curve for query in own for curve in _curves(url, query, since, until, step)]
        if not curves:
            raise ValueError(f"{url} has no data of {dashboard}, {title}, in that time")
        panels.append((title, own[0].unit, curves))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_svg(panels, since, until), encoding="utf-8")


def _curves(url: str, query: PanelQuery, since: float, until: float, step: float) -> list[Curve]:
    parameters = {"query": query.expr, "start": since, "end": until, "step": step}
    address = f"{url}/api/v1/query_range?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310 - the user's own
        series = json.load(answer)["data"]["result"]
    curves = []
    for one in series:
        points = [(float(t), float(v)) for t, v in one["values"] if math.isfinite(float(v))]
        if points:
            curves.append(Curve(_name(query.legend, one["metric"]), points))
    return sorted(curves, key=lambda curve: curve.name)


def _name(legend: str, labels: dict[str, str]) -> str:
    for label, value in labels.items():
        legend = legend.replace(f"{{{{{label}}}}}", value)
    return legend


def _svg(panels: Sequence[tuple[str, str, list[Curve]]], since: float, until: float) -> str:
    rows = [panels[i : i + COLUMNS] for i in range(0, len(panels), COLUMNS)]
    body, top = [], 0.0
    for row in rows:
        lines = max(math.ceil(len(curves) / 2) for _, _, curves in row)
        for column, (title, unit, curves) in enumerate(row):
            x = column * (WIDTH + LEFT + 16) + LEFT
            body += _panel(x, top + TOP, title, unit, curves, since, until)
        top += TOP + HEIGHT + 24 + LINE * lines
    width = COLUMNS * (WIDTH + LEFT + 16)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top:.0f}" width="{width}">'
        f"<style>{STYLE}</style>\n" + "\n".join(body) + "\n</svg>\n"
    )


def _panel(
    left: float, top: float, title: str, unit: str, curves: list[Curve], since: float, until: float
) -> list[str]:
    values = [value for curve in curves for _, value in curve.points]
    low, high = min(0.0, *values), max(values)
    high = high if high > low else low + 1
    bottom = top + HEIGHT

    def place(t: float, value: float) -> str:
        x = left + WIDTH * (t - since) / (until - since)
        return f"{x:.1f},{bottom - HEIGHT * (value - low) / (high - low):.1f}"

    drawn = [f'<text x="{left}" y="{top - 10}" class="title">{escape(title)}</text>']
    for share in (0.0, 0.5, 1.0):
        y = bottom - HEIGHT * share
        drawn += [
            f'<line x1="{left}" x2="{left + WIDTH}" y1="{y}" y2="{y}" class="grid"/>',
            f'<text x="{left - 5}" y="{y + 4}" text-anchor="end">'
            f"{_text(low + share * (high - low), unit)}</text>",
        ]
    drawn.append(
        f'<text x="{left + WIDTH}" y="{bottom + 14}" text-anchor="end">'
        f"{(until - since) / 60:.1f} min</text>"
    )
    for number, curve in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(place(t, value) for t, value in curve.points)
        x = left + WIDTH / 2 * (number % 2)
        y = bottom + 28 + LINE * (number // 2)
        drawn += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
            f'<rect x="{x}" y="{y - 6}" width="10" height="3" fill="{colour}"/>',
            f'<text x="{x + 14}" y="{y}">{escape(curve.name[:28])}</text>',
        ]
    return drawn


def _text(value: float, unit: str) -> str:
    """A value with its unit, short enough for an axis."""
    if unit == "percentunit":
        return f"{value:.0%}"
    if unit == "bytes":
        return f"{value / 2**20:.0f} MiB"
    if unit == "s" and 0 < value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g}{' s' if unit == 's' and value else ''}"


def main() -> None:
    """Draw the data behind the main panels, as a Prometheus has it, into one SVG picture."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("url", help="where Prometheus is, as http://localhost:9090")
    parser.add_argument("file", type=Path, help="SVG file to write")
    parser.add_argument("--minutes", type=float, default=60, help="how far back it goes")
    options = parser.parse_args()
    now = time.time()
    draw(options.url, options.file, since=now - 60 * options.minutes, until=now)


if __name__ == "__main__":
    main()
