"""Curves and bars as inline SVG. Colours come from the page's style, so they follow its theme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from antiphon.learner.record.report.run_data import Point
from antiphon.learner.record.report.statistics import Distribution

WIDTH, HEIGHT = 360, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 34
COLORS = 8


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    label: str
    points: Sequence[Point]


def line_chart(title: str, series: Sequence[Series], *, x_label: str = "joint actions") -> str:
    """A figure with one line per series and a key that shows the values under the pointer.

    Args:
        title: What is drawn.
        series: Each with one point at least.
        x_label: What the horizontal axis counts.
    """
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    x_low, x_high = min(xs), max(xs)
    x_ticks = [tick for tick in ticks(x_low, x_high) if x_low <= tick <= x_high]
    y_ticks = ticks(min(ys), max(ys))
    y_low, y_high = y_ticks[0], max(max(ys), y_ticks[-1])

    def at_x(value: float) -> float:
        return _LEFT + (value - x_low) / ((x_high - x_low) or 1) * (WIDTH - _LEFT - _RIGHT)

    def at_y(value: float) -> float:
        span = (y_high - y_low) or 1
        return HEIGHT - _BOTTOM - (value - y_low) / span * (HEIGHT - _TOP - _BOTTOM)

    parts = [_grid_y(tick, at_y(tick)) for tick in y_ticks]
    parts += [_tick_x(tick, at_x(tick)) for tick in x_ticks]
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text class="axis" x="{middle:.0f}" y="{HEIGHT - 4}">{escape(x_label)}</text>')
    parts.append(f'<line class="cursor" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}" hidden></line>')
    keys = []
    for index, one in enumerate(series):
        color = f"--c: var(--c{index % COLORS})"
        xy = [(at_x(x), at_y(y)) for x, y in one.points]
        if len(xy) == 1:
            x, y = xy[0]
            parts.append(f'<circle class="dot" style="{color}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
        dashed = " dashed" if index >= COLORS else ""
        parts.append(
            f'<polyline class="curve{dashed}" style="{color}"'
            f' points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in xy)}"'
            f' data-x="{" ".join(f"{x:.6g}" for x, _ in one.points)}"'
            f' data-y="{" ".join(f"{y:.4g}" for _, y in one.points)}"></polyline>'
        )
        keys.append(
            f'<span class="key" style="{color}"><i></i>{escape(one.label)} '
            f"<b>{one.points[-1][1]:.4g}</b></span>"
        )
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}"'
        f" data-lines>{''.join(parts)}</svg>"
        f'<div class="keys"><span class="where"></span>{"".join(keys)}</div></figure>'
    )


def histogram(
    title: str, bins: Sequence[str], turn: Distribution, *, color: int, most: float
) -> str:
    """Bars for the share of rewards in each bin; `most` is the share that fills the height."""
    height, floor = 150, 120
    step = (WIDTH - _LEFT - _RIGHT) / len(bins)
    bars = []
    for index, share in enumerate(turn.shares):
        tall = (floor - _TOP) * share / most
        x = _LEFT + index * step
        label = f"{bins[index]}: {share:.1%}"
        bars.append(
            f'<g><title>{escape(label)}</title><rect class="hit" x="{x:.1f}" y="{_TOP}" '
            f'width="{step:.1f}" height="{floor - _TOP}"/>'
            f'<rect class="bar" style="--c: var(--c{color % COLORS})" x="{x + step * 0.08:.1f}" '
            f'y="{floor - tall:.1f}" width="{step * 0.84:.1f}" height="{tall:.1f}"/></g>'
        )
    for share in ticks(0, most, about=2):
        if 0 < share <= most:
            y = floor - (floor - _TOP) * share / most
            bars.insert(0, _grid_y(share, y, f"{share:.0%}"))
    every = max(1, math.ceil(len(bins) / 5))
    for index in range(0, len(bins), every):
        at = _LEFT + (index + 0.5) * step
        name = escape(bins[index].split(" to ")[0])
        bars.append(f'<text class="tick" x="{at:.1f}" y="{floor + 14}">{name}</text>')
    bars.append(
        f'<line class="base" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{floor}" y2="{floor}"/>'
    )
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(bars)}</svg></figure>"
    )


def shares_bar(parts: Sequence[tuple[str, float, str]]) -> str:
    """One bar split into shares of a whole: label, share and CSS class of each."""
    pieces = "".join(
        f'<span class="{kind}" style="flex-grow: {share:.6f}" title="{escape(label)}">'
        f"{f'{share:.0%}' if share >= 0.08 else ''}</span>"
        for label, share, kind in parts
        if share > 0
    )
    keys = "".join(
        f'<span class="key {kind}"><i></i>{escape(label)} <b>{share:.1%}</b></span>'
        for label, share, kind in parts
    )
    return f'<div class="shares">{pieces}</div><div class="keys">{keys}</div>'


def amount_bars(rows: Sequence[tuple[str, float, str]], whole: float) -> str:
    """A horizontal bar per row: label, amount, and the text beside it."""
    cells = "".join(
        f'<div class="amount"><span>{escape(label)}</span>'
        f'<span class="track"><i style="width: {min(1, amount / (whole or 1)):.2%}"></i></span>'
        f"<span>{escape(text)}</span></div>"
        for label, amount, text in rows
    )
    return f'<div class="amounts">{cells}</div>'


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers within or just around a range, about so many steps."""
    if high <= low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _grid_y(value: float, y: float, text: str | None = None) -> str:
    label = short(value) if text is None else text
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick end" x="{_LEFT - 5}" y="{y + 3.5:.1f}">{label}</text>'
    )


def _tick_x(value: float, x: float) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{HEIGHT - _BOTTOM + 14}">{short(value)}</text>'


def short(value: float) -> str:
    """A number that fits beside an axis."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.4g}{letter}"
    return f"{value:.4g}"
