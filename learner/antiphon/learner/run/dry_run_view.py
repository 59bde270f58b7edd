"""Lays a dry run out for people: the resolved run, the size of its trees, what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from antiphon.learner.config.run_file import RunConfig
from antiphon.learner.rollout.size import TreeSize
from antiphon.learner.run.dry_run import DryRun

_COLUMNS = ("nodes", "joint actions", "completions", "most tokens")


def show_dry_run(console: Console, config: RunConfig, dry_run: DryRun) -> None:
    """Print a dry run."""
    _title(console, "Run")
    console.print(_settings(config))
    console.print(Text("Sections that are not shown are at their defaults.", "dim"))
    _title(console, "Size of the tree")
    console.print(_sizes(dry_run))
    _title(console, "Checks")
    console.print(_findings(dry_run))
    failed = sum(not finding.ok for finding in dry_run.findings)
    console.print()
    if failed:
        console.print(Text(f"{failed} of {len(dry_run.findings)} checks failed", "bold red"))
    else:
        console.print(Text("This run can start.", "bold green"))


def _title(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, "bold"))


def _settings(config: RunConfig) -> Table:
    """How the agents are trained, and of everything else what differs from its default."""
    table = Table(box=None, pad_edge=False)
    for column in ("setting", "value", ""):
        table.add_column(column, header_style="dim", overflow="fold")
    given = _flat(config.model_dump(mode="json", exclude_unset=True))
    given["magrpo.num_agents"] = True
    for name, value in _flat(config.resolved()).items():
        if name in given:
            table.add_row(name, _value(value), "")
        elif name.startswith("magrpo.") and not name.startswith("magrpo.retry."):
            table.add_row(name, _value(value), Text("default", "dim"))
    return table


def _sizes(dry_run: DryRun) -> Table:
    size = dry_run.size
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for column in _COLUMNS:
        table.add_column(column, justify="right", header_style="dim")
    for number, turn in enumerate(size.turns, 1):
        _add(table, f"turn {number}, at most", turn)
    _add(table, "per prompt, at least", size.least_per_prompt)
    _add(table, "per prompt, at most", size.most_per_prompt)
    if size.most_per_epoch is not None and size.most_per_run is not None:
        _add(table, "per epoch, at most", size.most_per_epoch)
        _add(table, "whole run, at most", size.most_per_run)
    return table


def _add(table: Table, name: str, size: TreeSize) -> None:
    numbers = (size.nodes, size.joint_actions, size.completions, size.tokens)
    table.add_row(name, *(f"{number:,}" for number in numbers))


def _findings(dry_run: DryRun) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for finding in dry_run.findings:
        mark = Text("ok", "green") if finding.ok else Text("FAILED", "bold red")
        table.add_row(mark, Text(finding.what), Text(finding.detail))
    return table


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name; list entries by number."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            flat |= _flat({str(number): entry for number, entry in enumerate(value)}, f"{name}.")
        else:
            flat[name] = value
    return flat


def _value(value: Any) -> Text:
    if value is None:
        return Text("none", "dim")
    if isinstance(value, bool):
        return Text(str(value).lower())
    if isinstance(value, list):
        return Text(", ".join(str(entry) for entry in value) or "none")
    return Text(str(value))
