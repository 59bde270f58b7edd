"""Follow a run."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Annotated

import typer

from antiphon.clients.cli.options import endpoint_command
from antiphon.clients.cli.watch_view import LineView, LiveView, View
from antiphon.clients.endpoint import Endpoint
from antiphon.clients.learner import LearnerClient
from antiphon.clients.types import Run, RunState


@endpoint_command
def watch(
    endpoint: Endpoint,
    after_sequence: Annotated[
        int, typer.Option(min=0, help="Show events above this number; 0 for all that are kept.")
    ] = 0,
    plain: Annotated[
        bool, typer.Option("--plain", help="One line per event, as when not on a terminal.")
    ] = False,
) -> None:
    """Follow a run while it trains, until it ends.

    Examples:
      antiphon watch localhost:50070
      antiphon watch localhost:50070 --plain > run.log
      antiphon watch learner.example:443 --tls-ca ca.pem --token-file token

    The learner prints its address when it starts. Where the connection breaks, watching goes on
    when the learner is back. The exit code is 0 when the run finished or was stopped, 1 when it
    failed.
    """
    view: View = LineView() if plain or not sys.stdout.isatty() else LiveView(endpoint.address)
    run = asyncio.run(_follow(endpoint, after_sequence, view))
    if run is not None and run.state is RunState.FAILED:
        typer.echo(f"antiphon: the run failed: {run.error or 'no reason given'}", err=True)
        raise typer.Exit(1)


async def _follow(endpoint: Endpoint, after_sequence: int, view: View) -> Run | None:
    """Show events until the run ends; returns the run as it last stood."""
    last: Run | None = None
    async with LearnerClient(endpoint) as client:
        stream = client.watch(after_sequence)
        with view:
            async with contextlib.aclosing(stream):
                async for event in stream:
                    view.show(event)
                    if isinstance(event.event, Run):
                        last = event.event
    return last
