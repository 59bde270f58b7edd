"""The tables of docs/scale.md and docs/what_to_run.md, as the results say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.cluster_sim_parts.scale import JOB

WANTED = 0.15
"""The largest error that the model is to have."""
BEGIN, END = "<!-- {}: written by make bench-cluster-sim -->", "<!-- end of {} -->"


def with_tables(page: str, details: dict[str, Any]) -> str:
    """A page with the tables that it has marks for."""
    for name, make in TABLES.items():
        begin, end = BEGIN.format(name), END.format(name)
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        table = f"{begin}\n\n{make(details)}\n\n{end}"
        page = pattern.sub(lambda _, table=table: table, page)  # type: ignore[misc]
    return page


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def validation(details: dict[str, Any]) -> str:
    """Measured and simulated seconds of a step, the error, and what it was measured beside."""
    here = details["measured_on"]
    far = [row["name"] for row in details["validation"] if abs(row["error"]) > WANTED]
    beyond = f"more than {100 * WANTED:.0f} % off: {'; '.join(far) or 'none'}"
    table = _table(
        ("real run", "processes", "measured, s per step", "simulated", "error"),
        [
            (
                row["name"],
                str(row["processes"]),
                f"{row['measured']:.2f}",
                f"{row['simulated']:.2f}",
                f"{100 * row['error']:+.0f} %",
            )
            for row in details["validation"]
        ],
    )
    beside = f"Measured on {here['cores']} cores at a load average of {here['load']}"
    return f"{table}\n\n{beside}; {beyond}."


def constants(details: dict[str, Any]) -> str:
    """What this machine measured."""
    machine, measured = details["machine_constants"], details["measured"]

    def micro(value: float) -> str:
        return f"{1e6 * value:,.0f} µs"

    parts = {
        "a step of the loop": "per_step",
        "a Generate call": "per_call",
        "a completion": "per_completion",
        "a token of it": "per_token",
        "a node (Score, Transition, prompts, samples)": "per_node",
        "a push, its bytes aside": "per_push",
    }
    rows = [
        (name, micro(machine["learner"][part]), micro(machine["service"][part]))
        for name, part in parts.items()
    ]
    engine, update = machine["engine"], machine["update"]
    model = (
        "the model that decodes: a step of B rows",
        f"{1e3 * engine['step_seconds']:.1f} + {1e3 * engine['row_seconds']:.2f} B ms",
        "",
    )
    return "\n".join(
        [
            _table(("processor time of", "learner", "service"), rows),
            "",
            _table(
                ("also", "", ""),
                [
                    model,
                    ("the same: a token of a prompt", micro(engine["prompt_seconds"]), ""),
                    (
                        "its update: an optimiser step, and a trained token",
                        micro(update["per_step"]),
                        micro(update["per_token"]),
                    ),
                    (
                        "bytes that leave one process",
                        f"{measured['push_rate'] / 1e6:,.0f} MB/s",
                        "",
                    ),
                    (
                        "comparing and encoding weights (`bench-push-delta`)",
                        f"{measured['encode_rate'] / 1e6:,.0f} MB/s",
                        "",
                    ),
                    (
                        "bytes of a delta (`bench-push-delta`, a prompt's steps at 1e-6)",
                        f"{100 * measured['changed']:.2f} %",
                        "",
                    ),
                ],
            ),
        ]
    )


def assumptions(details: dict[str, Any]) -> str:
    """What is assumed of GPUs, networks and models."""
    prefixes = ((1e12, "T"), (1e9, "G"))

    def value(one: dict[str, Any]) -> str:
        for size, prefix in prefixes:
            if one["value"] >= size:
                return f"{one['value'] / size:,.4g} {prefix}{one['unit'].replace('bytes', 'B')}"
        return f"{one['value']:,.4g} {one['unit']}".strip()

    rows = [(one["name"], value(one), one["source"]) for one in details["assumptions"]]
    models = [
        (
            f"{name}: {one['name']}",
            f"{one['parameters'] / 1e9:.3g} G parameters, {one['layers']} layers, "
            f"{one['hidden']} wide, {one['kv_heads']} key-value heads of {one['head_size']}",
            "its published configuration",
        )
        for name, one in details["models"].items()
    ]
    return _table(("assumed", "value", "source"), [*rows, *models])


def scale(details: dict[str, Any]) -> str:
    """Every model and design at few, more and a thousand replicas."""
    return _table(
        (
            "model",
            "weights are published as",
            "replicas",
            "GPUs: engines + learner",
            "s per step",
            "of it pushing",
            "engines idle",
            "learner's loop",
            "learner's link",
            "of the ideal",
            "staleness",
        ),
        [
            (
                row["model"],
                row["design"],
                f"{row['replicas']:,}",
                f"{row['engine_gpus']:,} + {row['learner_gpus']:,}",
                _seconds(row["step"]),
                _seconds(row["push_seconds"]),
                _share(row["engines_idle"]),
                _share(row["loop"]),
                _share(row["link"]),
                _share(row["of_ideal"]),
                f"{row['mean_staleness']:.1f}",
            )
            for row in details["scale"]
            if row["replicas"] in (2, 32, 128, 1000)
        ],
    )


def changes(details: dict[str, Any]) -> str:
    """What single changes do."""
    base = details["changes"][0]["step"]
    return _table(
        ("128 replicas of 7B", "s per step", "times", "engines idle", "learner idle", "staleness"),
        [
            (
                row["name"],
                _seconds(row["step"]),
                f"{row['step'] / base:.2f}",
                _share(row["engines_idle"]),
                _share(row["learner_idle"]),
                f"{row['mean_staleness']:.1f}",
            )
            for row in details["changes"]
        ],
    )


def limits(details: dict[str, Any]) -> str:
    """Where a step takes more than 1.25 times the ideal, and what is busiest there."""
    rows = []
    kinds = dict.fromkeys((row["model"], row["design"]) for row in details["scale"])
    for model, design in kinds:
        mine = [r for r in details["scale"] if (r["model"], r["design"]) == (model, design)]
        below = [row for row in mine if row["of_ideal"] < 0.8]
        last = below[0] if below else mine[-1]
        most = mine[-1]
        where = f"{last['replicas']:,} replicas" if below else "not up to 1,000"
        rows.append(
            (
                model,
                design,
                where,
                f"{most['replicas']:,}",
                _share(most["of_ideal"]),
                _share(most["push_seconds"] / most["step"]),
                _share(most["link"]),
                _share(most["loop"]),
            )
        )
    table = _table(
        (
            "model",
            "weights are published as",
            "below 80 % of the ideal from",
            "with the most replicas",
            "there: of the ideal",
            "pushing",
            "learner's link busy",
            "learner's event loop busy",
        ),
        rows,
    )
    return f"{table}\n\n{_loop(details)}"


def _loop(details: dict[str, Any]) -> str:
    """What the learner's event loop can take."""
    learner, mean = details["measured"]["learner"], JOB.tokens * (1 + JOB.shortest) / 2
    of_node = learner["per_node"] / (JOB.agents * JOB.generations)
    each = learner["per_completion"] + mean * learner["per_token"] + of_node
    return (
        f"With what was measured here, the learner's event loop takes {1e3 * each:.1f} ms for a "
        f"completion of {mean:.0f} tokens, {100 * mean * learner['per_token'] / each:.0f} % of it "
        f"for the tokens: it is full at {mean / each:,.0f} tokens/s."
    )


def advice(details: dict[str, Any]) -> str:
    """Clusters, and what a step takes on them."""
    rows = []
    for one in details["advice"]:
        for placement in ("shared", "per-agent"):
            strict, ahead = (one[f"{placement}, staleness {s}"] for s in (0, 1))
            rows.append(
                (
                    f"{one['model']} ({one['name']}), {one['size']}",
                    str(one["gpus"]),
                    f"{one['learner_gpus']}, {placement}",
                    f"2 times {one['replicas']} of {one['gpus_per_replica']} GPU"
                    + ("s" if one["gpus_per_replica"] > 1 else ""),
                    _seconds(strict["update_seconds"]),
                    _seconds(strict["step"]),
                    _seconds(ahead["step"]),
                    f"{_share(ahead['engines_idle'])} / {_share(ahead['learner_idle'])}",
                    f"{ahead['tokens_per_second']:,.0f}",
                )
            )
    return _table(
        (
            "agents",
            "GPUs",
            "learner: GPUs, placement",
            "engines: agents, replicas, size",
            "update, s",
            "step at staleness 0, s",
            "at 1, s",
            "idle at 1: engines / learner",
            "sampled tokens/s at 1",
        ),
        rows,
    )


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "validation": validation,
    "constants": constants,
    "assumptions": assumptions,
    "scale": scale,
    "changes": changes,
    "limits": limits,
    "advice": advice,
}
