"""docs/parity.md and the table in the terminal, from the rows alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.parity_parts.rows import Row

HEAD = """\
<!-- Written by `make bench-parity` from benchmarks/results/parity.json; do not edit. -->
# Parity with CoMLRL

`make bench-parity` runs CoMLRL 1.4.3 in an environment of its own and antiphon on the same
scripted completions and rewards, and holds every number of one against the other's. CoMLRL is
driven through its real trainer (`train()` and `evaluate()`; `generate` is scripted, but for L11,
L19 and the first row of U3). antiphon is driven through its rollout, returns, advantages, buffers,
policies, references, sampler, evaluations and record, and for L18, L19 and L22 in whole runs of
`MAGRPOTrainer` and its services, where nothing is scripted. The command fails where a row below
does not hold. The equations of antiphon's side are in [algorithms](algorithms.md), the differences
as a user meets them in [coming from CoMLRL](coming_from_comlrl.md).

The grid: 1 to 3 agents, 1 to 3 turns, `aligned` (4 completions) and `cross` (2 completions), early
termination off and on, the four advantage modes, with normalisation off and on. Rewards are
multiples of 1/8, so that nothing is rounded before it is compared. Loss, gradient, weights and
reference KL come from tiny random Llamas in float32, sampled at temperature 1 without filters.
There all completions are of one length and CoMLRL gets one column of padding behind them, so that
what it gets wrong in the loss (below, L1, L2, L7) does not enter.
"""

EQUAL_HEAD = """
## Where CoMLRL is right: the same numbers

CoMLRL computes in float32 where antiphon computes in Python's floats until the loss.

| quantity | compared | largest difference | wanted | |
|---|---:|---:|---|---|
"""

RELATION_HEAD = """
## Where antiphon differs on purpose: the exact relation

n is the number of completions of a group, G completions per prompt, N agents, R the returns of the
group; std is the population's. The difference is what is left of the relation.

| quantity | relation | compared | largest difference | wanted | |
|---|---|---:|---:|---|---|
"""

FAULT_HEAD = """
## Where CoMLRL is wrong: both numbers and the right one

A row holds where antiphon's number is the right one and CoMLRL's is not. A is the advantage, n the
number of completions of the group. Letters and numbers name the kind of failure: L of learning, U
of user functions; tests carry the same names.

A reward function that never returns (U7) has no number: CoMLRL waits for it and never ends. In
antiphon `score_timeout` ends the call, and `on_score_failure` says whether its score is missing or
the run stops.

| | what | CoMLRL | antiphon | right | by hand | |
|---|---|---:|---:|---:|---|---|
"""


def _number(value: object) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, str):
        return value
    assert isinstance(value, (int, float))
    if value == 0:
        return "0"
    return f"{value:.1e}" if abs(value) < 1e-4 else f"{value:.6g}"


def _mark(row: Row) -> str:
    return "holds" if row["holds"] else "**does not hold**"


def _cells(row: Row) -> list[str]:
    if row["kind"] == "fault":
        numbers = [f"`{_number(row[key])}`" for key in ("comlrl", "value", "wanted")]
        return [row["row"], row["what"], *numbers, row["by_hand"], _mark(row)]
    start = [row["what"]] if row["kind"] == "equal" else [row["what"], row["relation"]]
    return [*start, str(row["compared"]), _number(row["value"]), row["wanted"], _mark(row)]


def _table(rows: Iterable[Row], kind: str) -> str:
    cells = [_cells(row) for row in rows if row["kind"] == kind]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def page(rows: Sequence[Row]) -> str:
    """The text of docs/parity.md."""
    holding = sum(row["holds"] for row in rows)
    return (
        HEAD
        + EQUAL_HEAD
        + _table(rows, "equal")
        + RELATION_HEAD
        + _table(rows, "relation")
        + FAULT_HEAD
        + _table(rows, "fault")
        + f"\n{holding} of {len(rows)} rows hold. Measured on {rows[0]['machine']}.\n"
    )


def terminal(rows: Sequence[Row]) -> str:
    """The same for a terminal, a line per row."""
    lines = []
    titles = {
        "equal": "CoMLRL is right: largest difference",
        "relation": "antiphon differs on purpose: what is left of the relation",
        "fault": "CoMLRL is wrong: CoMLRL / antiphon / right",
    }
    for kind, title in titles.items():
        lines.append(f"\n{title}")
        for row in (row for row in rows if row["kind"] == kind):
            mark = "ok  " if row["holds"] else "FAIL"
            if kind == "fault":
                numbers = " / ".join(_number(row[key]) for key in ("comlrl", "value", "wanted"))
                lines.append(f"{mark} {row['row']:>3} {numbers:<33} {row['what']}")
            else:
                said = row["relation"] or row["what"]
                lines.append(f"{mark} {_number(row['value']):>9} of {row['compared']:<6} {said}")
    holding = sum(row["holds"] for row in rows)
    lines.append(f"\n{holding} of {len(rows)} rows hold ({rows[0]['machine']}).")
    return "\n".join(lines)
