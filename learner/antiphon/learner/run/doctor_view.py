"""Lays out what the doctor found: for people, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from antiphon.clients.reach import Verdict
from antiphon.learner.run.doctor import Patient

_MARKS = {
    Verdict.OK: ("ok", "green"),
    Verdict.WARNING: ("warning", "yellow"),
    Verdict.FAULT: ("FAULT", "bold red"),
}


def show_patients(console: Console, patients: Sequence[Patient]) -> None:
    """Print a table per address; what to do follows what is not well."""
    for patient in patients:
        console.print(Text(f"{patient.name} at {patient.address}", "bold"))
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for remark in patient.remarks:
            table.add_row(Text(*_MARKS[remark.verdict]), Text(remark.what), Text(remark.detail))
            if remark.advice and remark.verdict is not Verdict.OK:
                table.add_row("", "", Text(f"-> {remark.advice}", "italic"))
        console.print(table)
        console.print()
    console.print(_conclusion(patients))


def patients_json(patients: Sequence[Patient]) -> list[dict[str, Any]]:
    """The same as JSON values."""
    return [{**asdict(patient), "verdict": patient.worst.value} for patient in patients]


def _conclusion(patients: Sequence[Patient]) -> Text:
    if not patients:
        return Text("The run names no address: it starts its services itself.", "bold green")
    faults = sum(patient.worst is Verdict.FAULT for patient in patients)
    if faults:
        return Text(f"{faults} of {len(patients)} addresses cannot be used.", "bold red")
    return Text("Every address can be used.", "bold green")
