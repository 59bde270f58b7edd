"""The parts of a report, each as HTML."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from html import escape
from typing import Any

from antiphon.learner.record.report import charts
from antiphon.learner.record.report.charts import Series
from antiphon.learner.record.report.run_data import Point, RunData
from antiphon.learner.record.report.statistics import Comparison, Distributions, buckets
from antiphon.learner.record.report.trees import ShownTrees

MOST_POINTS = 150
"""Points of a curve; more rows than that are averaged in groups."""

_FIGURE = re.compile(r"(?P<eval>eval/)?(?P<who>turn|agent)_(?P<number>\d+)/(?P<name>.+)")
_FIRST = {
    "turn": ("reward_mean", "expected_return", "reference_kl_mean"),
    "agent": (
        "loss",
        "grad_norm",
        "entropy",
        "completion_tokens_mean",
        "advantage_spread",
        "clip_fraction",
    ),
}
_TITLES = {
    "reward_mean": "Mean reward",
    "expected_return": "Expected return",
    "reference_kl_mean": "KL to the reference",
    "loss": "Loss",
    "grad_norm": "Gradient norm",
    "entropy": "Entropy (estimate)",
    "completion_tokens_mean": "Tokens of a completion",
    "advantage_spread": "Spread of advantages",
    "clip_fraction": "Share of clipped tokens",
}


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def head(run: RunData) -> str:
    """Name, models, how far the run got and how it ended."""
    summary = run.summary or {}
    state = str(summary.get("state", "not ended: it still trains, or was killed"))
    seconds = float(summary.get("seconds", run.counter("elapsed_seconds")))
    facts = [
        ("State", state),
        ("Time", duration(seconds)),
        ("Epochs", f"{summary.get('epochs', run.counter('epoch')):g}"),
        ("Prompts trained", f"{summary.get('prompts', run.counter('prompts')):,g}"),
        ("Joint actions", f"{summary.get('joint_actions', run.counter('joint_actions')):,g}"),
    ]
    for name, points in sorted(run.curves().items()):
        if re.fullmatch(r"turn_\d+/reward_mean", name):
            turn = name.partition("/")[0].replace("_", " ")
            (_, first), *_ = buckets(points, 10)[0]
            *_, (_, last) = buckets(points, 10)[0]
            facts.append((f"Reward, {turn}", f"{first:.3g} → {last:.3g}"))
    cells = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts)
    error = f"<pre class='error'>{escape(summary['error'])}</pre>" if summary.get("error") else ""
    names = [str(agent.get("model", "?")) for agent in run.config.get("agents", [])]
    models = "".join(f"<li>agent {i}: {escape(name)}</li>" for i, name in enumerate(names))
    return (
        f"<header><h1>{escape(run.name)}</h1><ul class='models'>{models}</ul>"
        f"<dl class='facts'>{cells}</dl>{error}"
        f"{_note('Rewards: mean of the first and of the last tenth of the rows.')}</header>"
    )


def curves(run: RunData) -> str:
    """A chart per figure of the metrics, with a line per turn or agent."""
    found = run.curves()
    if not found:
        return _section("Curves", _note("No row of the metrics is written yet."))
    grouped: dict[tuple[str, str, str], list[tuple[int, list[Point]]]] = defaultdict(list)
    for name, points in found.items():
        match = _FIGURE.fullmatch(name)
        if match:
            key = (match["eval"] or "", match["who"], match["name"])
            grouped[key].append((int(match["number"]), points))
    first: list[str] = []
    rest: list[str] = []
    for (prefix, who, name), lines in sorted(grouped.items(), key=_order):
        title = ("Evaluation: " if prefix else "") + _title(name)
        chart = _chart(title, [(f"{who} {number}", points) for number, points in sorted(lines)])
        shown = name in _FIRST[who] or prefix or name.startswith("components/")
        (first if shown else rest).append(chart)
    others = [
        _chart(name.replace("_", " "), [(name, points)])
        for name, points in sorted(found.items())
        if not _FIGURE.fullmatch(name) and not name.startswith("seconds/")
    ]
    rows = len(run.rows)
    size = -(-rows // MOST_POINTS)
    note = f"Each point is the mean of {size} of {rows:,} rows." if size > 1 else f"{rows} rows."
    more = [*rest, *others]
    details = f"<details><summary>{len(more)} more figures</summary>{_grid(more)}</details>"
    return _section("Curves", _note(note), _grid(first), details if more else "")


def _title(name: str) -> str:
    if name.startswith("components/"):
        return f"Component: {name.partition('/')[2]}"
    return _TITLES.get(name, name.replace("_", " "))


def _order(entry: tuple[tuple[str, str, str], Any]) -> tuple[bool, bool, int, str]:
    """Turns before agents, training before evaluation, the figures people look at first."""
    (prefix, who, name), _ = entry
    known = _FIRST[who]
    return who == "agent", bool(prefix), known.index(name) if name in known else len(known), name


def _chart(title: str, lines: list[tuple[str, list[Point]]], x_label: str = "joint actions") -> str:
    series = [Series(label, buckets(points, MOST_POINTS)[0]) for label, points in lines]
    return charts.line_chart(title, series, x_label=x_label)


def _grid(figures: list[str]) -> str:
    return f'<div class="grid">{"".join(figures)}</div>'


def compared(found: list[Comparison]) -> str:
    """Whether the answers of a turn are better than those of the turn before."""
    title = "Is the later answer better?"
    if not found:
        return _section(title, _note("No branch has a reward at two turns."))
    parts = []
    for one in found:
        interval = (
            f" (95 % interval {one.interval[0]:+.3g} to {one.interval[1]:+.3g})"
            if one.interval
            else ""
        )
        parts.append(
            f"<h3>Turn {one.turn} against turn {one.turn - 1}</h3>"
            f"<p>Of {one.branches:,} branches that went on, the later answers scored higher on "
            f"{one.better / one.branches:.0%}. Mean change of a prompt: "
            f"<strong>{one.change:+.3g}</strong>{interval}, over {one.prompts:,} trees.</p>"
        )
        parts.append(
            charts.shares_bar(
                [
                    ("better", one.better / one.branches, "better"),
                    ("the same", one.equal / one.branches, "same"),
                    ("worse", one.worse / one.branches, "worse"),
                ]
            )
        )
        lines = [(f"turn {one.turn - 1}", one.first), (f"turn {one.turn}, after it", one.second)]
        parts.append(_grid([_chart("Reward of branches that went on", lines, "prompts trained")]))
    parts.append(
        _note(
            "Paired by branch: the reward of a joint action against the mean reward of the joint "
            "actions that followed it. Branches that ended are in neither. The interval is from "
            "the spread between trees."
        )
    )
    return _section(title, *parts)


def shares(found: Distributions) -> str:
    """How rewards are distributed, by turn."""
    if not found.turns:
        return _section("Distribution of rewards", _note("No tree with a reward is kept."))
    most = max(share for turn in found.turns for share in turn.shares)
    figures = [
        charts.histogram(
            f"Turn {turn.turn}: mean {turn.mean:.3g}", found.bins, turn, color=index, most=most
        )
        for index, turn in enumerate(found.turns)
    ]
    return _section("Distribution of rewards", _grid(figures), _table(found))


def _table(found: Distributions) -> str:
    names = ("turn", "rewards", "missing", "mean", "sd", "min", "25 %", "50 %", "75 %", "max")
    lines = [f"<tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>"]
    for turn in found.turns:
        numbers = (turn.mean, turn.deviation, turn.smallest, *turn.quartiles, turn.largest)
        cells = [str(turn.turn), f"{turn.count:,}", f"{turn.missing:,}"]
        cells += [f"{number:.3g}" for number in numbers]
        lines.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def browser(trees: ShownTrees) -> str:
    """The place where the page's script draws the tree that its reader picks."""
    if not trees.values:
        return _section("Prompts and answers", _note("No tree is kept."))
    shown = len(trees.values)
    note = (
        f"A sample: {shown:,} of the {trees.kept:,} trees kept, spread over the run. More with "
        "antiphon report --trees, or in a terminal with antiphon rollouts."
        if shown < trees.kept
        else f"All {trees.kept:,} trees that were kept."
    )
    return _section(
        "Prompts and answers",
        _note(note),
        '<div class="picker"><button id="previous" aria-label="previous tree">&lsaquo;</button>'
        '<select id="tree" aria-label="tree"></select>'
        '<button id="next" aria-label="next tree">&rsaquo;</button></div>'
        '<div id="browser"><p class="note">This part needs JavaScript.</p></div>',
    )


def time(run: RunData) -> str:
    """Where the time went."""
    seconds = run.stage_seconds()
    elapsed = run.counter("elapsed_seconds")
    if not seconds:
        return _section("Time by stage", _note("No row of the metrics is written yet."))
    rows = [
        (stage, value, f"{duration(value)} · {value / (elapsed or 1):.0%}")
        for stage, value in seconds.items()
    ]
    return _section(
        "Time by stage",
        charts.amount_bars([("all", elapsed, duration(elapsed)), *rows], elapsed),
        _note("Seconds in which work of a stage was under way. Stages may overlap."),
    )


def settings(run: RunData) -> str:
    """The resolved settings."""
    text = escape(json.dumps(run.config, indent=2, ensure_ascii=False))
    return f"<section><details><summary>Settings</summary><pre>{text}</pre></details></section>"


def duration(seconds: float) -> str:
    """A duration to read."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.3g} s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {whole % 60:02} s"
