"""The curves as one SVG: a row per turn; against samples on the left, against seconds on the right.

Plain SVG, so that the picture needs no plotting library and reads the same in light and dark pages.
"""

from __future__ import annotations

from typing import Any

COLOURS = {
    "comlrl-plain": "#c2410c",
    "antiphon-plain": "#1d4ed8",
    "comlrl-defaults": "#f59e0b",
    "antiphon-defaults-sampled": "#0d9488",
    "antiphon-defaults-full": "#7c3aed",
}
WIDTH, HEIGHT = 420, 240
LEFT, TOP, GAP = 52, 58, 66
LOWEST, HIGHEST = 0.0, 1.0


class _Panel:
    """One pair of axes."""

    def __init__(self, left: float, top: float, most: float) -> None:
        self.left, self.top, self.most = left, top, most

    def x(self, value: float) -> float:
        return self.left + WIDTH * value / self.most

    def y(self, reward: float) -> float:
        inside = min(HIGHEST, max(LOWEST, reward))
        return self.top + HEIGHT * (HIGHEST - inside) / (HIGHEST - LOWEST)

    def points(self, xs: list[float], ys: list[float]) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(xs, ys, strict=True))

    def axes(self, title: str, label: str, level: float) -> list[str]:
        bottom, right = self.top + HEIGHT, self.left + WIDTH
        lines = [
            f'<text x="{self.left}" y="{self.top - 8}" class="title">{title}</text>',
            f'<text x="{right}" y="{bottom + 34}" text-anchor="end">{label}</text>',
        ]
        for step in range(6):
            reward = LOWEST + (HIGHEST - LOWEST) * step / 5
            at, where = self.y(reward), self.left + WIDTH * step / 5
            lines += [
                f'<line x1="{self.left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>',
                f'<text x="{self.left - 6}" y="{at + 4:.1f}" text-anchor="end">{reward:.1f}</text>',
                f'<text x="{where:.1f}" y="{bottom + 17}" text-anchor="middle">'
                f"{self.most * step / 5:,.0f}</text>",
            ]
        at = self.y(level)
        lines.append(
            f'<line x1="{self.left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" class="level"/>'
        )
        return lines

    def curve(self, xs: list[float], curve: dict[str, list[float]], colour: str) -> list[str]:
        band = f"{self.points(xs, curve['high'])} {self.points(xs[::-1], curve['low'][::-1])}"
        return [
            f'<polygon points="{band}" fill="{colour}" opacity="0.15"/>',
            f'<polyline points="{self.points(xs, curve["mean"])}" fill="none" stroke="{colour}" '
            'stroke-width="2"/>',
        ]


def draw(arms: dict[str, Any], level: float) -> str:
    """Draw `of_arm`'s figures of every arm."""
    turns = [name for name in next(iter(arms.values()))["curves"] if name.startswith("turn_")]
    full_width = LEFT + 2 * WIDTH + GAP + 20
    full_height = TOP + len(turns) * (HEIGHT + GAP)
    body: list[str] = []
    for number, name in enumerate(arms):
        x = LEFT + number * 178
        body += [
            f'<rect x="{x}" y="14" width="16" height="4" fill="{COLOURS[name]}"/>',
            f'<text x="{x + 21}" y="20">{name}</text>',
        ]
    for column, (axis, label) in enumerate(
        [("samples", "joint actions sampled"), ("seconds", "seconds, start-up included")]
    ):
        most = max(arm["curves"][axis][-1] for arm in arms.values())
        for row, turn in enumerate(turns):
            panel = _Panel(LEFT + column * (WIDTH + GAP), TOP + row * (HEIGHT + GAP), most)
            body += panel.axes(f"reward, {turn.replace('_', ' ')}", label, level)
            for name, arm in arms.items():
                body += panel.curve(arm["curves"][axis], arm["curves"][turn], COLOURS[name])
    style = (
        "text{font:12px sans-serif;fill:#444}.title{font-weight:bold}"
        ".grid{stroke:#ddd}.level{stroke:#888;stroke-dasharray:5 4}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {full_width} {full_height}" '
            f'width="{full_width}" height="{full_height}">',
            f"<style>{style}</style>",
            f'<rect width="{full_width}" height="{full_height}" fill="white"/>',
            *body,
            "</svg>\n",
        ]
    )
