"""`antiphon doctor`."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from antiphon.clients.reach import Verdict
from antiphon.learner.config.run_file import load_run_config


def doctor(
    file: Annotated[Path, typer.Argument(metavar="RUN.TOML", help="The run.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a setting of the file; may be repeated."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Reach every address of a run, and say what is wrong there and what to do about it.

    Of each address: its name, connection, TLS certificate, health, token, version, clock, latency
    and bandwidth; of a generation service also whether its model and tokenizer fit the agent, its
    context, and which run it belongs to; of a reward service what it says of itself. Nothing is
    changed and nothing is generated.

    Examples:
        antiphon doctor run.toml
        antiphon doctor run.toml --set agents.0.addresses='["gpu-1:50051"]'
        antiphon doctor run.toml --json | jq '.[] | select(.verdict == "fault")'

    What else a run needs (dataset, prompts, functions): antiphon train run.toml --dry-run.
    Whether a reward or transition service keeps the contract: antiphon check reward ADDRESS.

    Exit codes: 0 all can be used, warnings or not; 1 an address cannot.
    """
    config = load_run_config(file, overrides=overrides or (), environ=os.environ)

    from antiphon.learner.run.doctor import examine
    from antiphon.learner.run.doctor_view import patients_json, show_patients

    patients = asyncio.run(examine(config))
    if as_json:
        typer.echo(json.dumps(patients_json(patients), indent=2))
    else:
        from rich.console import Console

        show_patients(Console(), patients)
    if any(patient.worst is Verdict.FAULT for patient in patients):
        raise typer.Exit(1)
