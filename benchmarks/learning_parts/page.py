"""The tables of docs/learning.md, as the benchmark prints and writes them."""

from __future__ import annotations

from typing import Any

from benchmarks.learning_parts.task import ARMS

BEGIN = "<!-- The tables are written by make bench-learning. -->"
END = "<!-- End of the tables. -->"
PLOT = "![Reward of each turn against samples and against seconds](learning.svg)"
_UNKNOWN = "unknown"


def with_tables(page: str, result: dict[str, Any]) -> str:
    """The page with the plot and the tables of `result` between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{PLOT}\n\n{tables(result)}\n\n{END}{after}"


def tables(result: dict[str, Any]) -> str:
    """Two Markdown tables: every arm, and ours against the peer."""
    return "\n\n".join([_arms(result), _compared(result)])


def _arms(result: dict[str, Any]) -> str:
    seeds = len(next(iter(result["arms"].values()))["seeds"])
    lines = [
        f"Means over {seeds} seeds with their intervals ({result['interval']}); the level is "
        f"{result['level']}. Seconds are those of the runs that met a load average of "
        f"{result['quiet_load']:g} at most, their own included; their number stands beside them.",
        "",
        "| arm | final reward, turn 1 | final reward, turn 2 | seeds that reached the level "
        "| samples to the level | seconds to the level | of them start-up | whole run, s "
        "| processor seconds to the level | optimiser steps per agent | load average |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, arm in result["arms"].items():
        until = arm["until_level"]
        cells = [
            name,
            _span(arm["final_reward"]["turn_1"], ".2f"),
            _span(arm["final_reward"]["turn_2"], ".2f"),
            f"{arm['reached']} of {len(arm['seeds'])}",
            _span(until["samples"], ",.0f"),
            f"{_span(until['seconds'], '.0f')}, {_timed(arm['timed'], 'runs')}",
            _span(arm["start_seconds"], ".1f"),
            _span(arm["total_seconds"], ".0f"),
            _span(until["cpu_seconds"], ".0f"),
            f"{arm['optimizer_steps']['mean']:.0f}",
            f"{arm['load_average']['mean']:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _machines(result["arms"]), "", _codes(result["arms"])])


def _machines(arms: dict[str, Any]) -> str:
    """Where each arm's seconds were taken: those of different machines are not to be compared."""
    met: dict[str, list[str]] = {}
    for name, arm in arms.items():
        met.setdefault(arm["machine"]["processor"], []).append(name)
    if len(met) == 1:
        return f"All arms ran on a machine with the processor {next(iter(met))}."
    told = "; ".join(f"{', '.join(names)} on {processor}" for processor, names in met.items())
    return f"Processors: {told}. Seconds compare arms of one machine only."


def _codes(arms: dict[str, Any]) -> str:
    """Which code each arm of antiphon ran: arms of different code differ by that too."""
    met: dict[str, list[str]] = {}
    for name, arm in arms.items():
        if ARMS[name].side == "antiphon":
            met.setdefault(" and ".join(arm.get("code") or [_UNKNOWN]), []).append(name)
    codes = list(met)
    if codes in ([], [_UNKNOWN]):
        return "Which code of antiphon ran was not written down."
    if len(codes) == 1 and " " not in codes[0]:
        return f"All arms of antiphon ran the same code, {codes[0]} (a digest of its sources)."
    told = "; ".join(f"{', '.join(names)} {code}" for code, names in met.items())
    return (
        f"Code of antiphon (digests of its sources): {told}. Arms of other code differ by that too."
    )


def _compared(result: dict[str, Any]) -> str:
    lines = [
        f"antiphon against {result['baseline']}, seed by seed (differences: antiphon's less "
        "CoMLRL's; ratios: antiphon's over CoMLRL's, geometric means):",
        "",
        "| antiphon | CoMLRL | both reached it | final reward, difference | samples to the level, "
        "difference | samples, ratio | seconds to the level, ratio | without start-up | processor "
        "seconds, ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in result["compared"].items():
        cells = [
            name,
            one["with"],
            f"{one['both_reached']} of {len(one['seeds'])}",
            _span(one["final_reward_difference"], "+.2f"),
            _span(one["samples_difference"], "+,.0f"),
            _span(one["samples_ratio"], ".2f"),
            f"{_span(one['seconds_ratio'], '.2f')}, {_timed(one['timed'], 'pairs')}",
            _span(one["seconds_ratio_after_start"], ".2f"),
            _span(one["cpu_seconds_ratio"], ".2f"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _timed(timed: dict[str, Any], what: str) -> str:
    busy = "" if timed["quiet"] else " on a busy machine"
    return f"{timed[what]} {what}{busy}"


def _span(value: dict[str, float], form: str) -> str:
    return f"{value['mean']:{form}} ({value['low']:{form}} to {value['high']:{form}})"
