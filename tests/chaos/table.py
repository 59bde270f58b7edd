"""The table of faults and outcomes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from tests.chaos.faults import Outcome
from tests.chaos.plan import Fault


def print_table(seed: int, faults: Sequence[Fault], outcomes: Sequence[Outcome]) -> None:
    """Print what was done to whom, at which byte, and when the victim was heard again."""
    table = Table(title=f"{len(outcomes)} of {len(faults)} faults, seed {seed}", box=None)
    for heading in ("#", "fault", "victim", "at", "what was done", "heard again"):
        table.add_column(heading, justify="right" if heading == "#" else "left")
    for outcome in outcomes:
        fault = outcome.fault
        table.add_row(
            str(fault.number),
            fault.kind,
            fault.victim,
            f"{fault.proxy} {fault.direction}, byte {outcome.byte}",
            outcome.done.text,
            f"after {outcome.seconds:.2f} s",
        )
    for fault in faults[len(outcomes) : len(outcomes) + 1]:
        table.add_row(str(fault.number), fault.kind, fault.victim, "", "not overcome", "")
    Console(width=150).print(table)
