"""What a check found, and the table of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Args:
        check: What was tried.
        passed: Whether the contract was kept.
        got: What came.
        wanted: What the contract wants.
        advice: What to do where it failed.
    """

    check: str
    passed: bool
    got: str
    wanted: str
    advice: str = ""


def print_report(address: str, findings: Sequence[Finding]) -> bool:
    """Print a table of all findings and a line that sums them up; whether all passed."""
    failed = [finding for finding in findings if not finding.passed]
    table = Table(show_lines=bool(failed))
    for column in ("check", "result", "got", "wanted", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        table.add_row(
            Text(finding.check),
            Text("pass", "green") if finding.passed else Text("FAIL", "bold red"),
            Text(finding.got),
            Text(finding.wanted),
            Text("" if finding.passed else finding.advice),
        )
    console = Console(highlight=False)
    console.print(table)
    passed = len(findings) - len(failed)
    verdict = "keeps the contract" if not failed else "does not keep the contract"
    console.print(Text(f"{address} {verdict}: {passed} of {len(findings)} checks passed"))
    return not failed
