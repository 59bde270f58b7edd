"""What the command line reads from arguments, without running the command."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import typer.main

from antiphon.clients.cli import app


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """The values that `antiphon ARGUMENTS` reads; raises click's UsageError where it refuses."""
    with contextlib.redirect_stderr(sys.stderr):  # parsing may set logging up
        return _parsed(arguments)


def _parsed(arguments: Sequence[str]) -> dict[str, Any]:
    command: Any = typer.main.get_command(app)
    context, rest = None, list(arguments)
    while True:
        context = command.make_context("antiphon", rest, parent=context)
        if not hasattr(command, "resolve_command"):
            return dict(context.params)
        rest = [*context._protected_args, *context.args]
        _, command, rest = command.resolve_command(context, rest)
