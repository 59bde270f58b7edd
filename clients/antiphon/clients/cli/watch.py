"""Follow a run."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from typing import Annotated

import typer

from antiphon.clients.cli.options import endpoint_command
from antiphon.clients.cli.watch_view import LineView, LiveView, View
from antiphon.clients.endpoint import Endpoint
from antiphon.clients.errors import CallError
from antiphon.clients.learner import LearnerClient
from antiphon.clients.retry import RetryPolicy
from antiphon.clients.types import Run, RunState

_AGAIN = RetryPolicy(attempts=10**6, deadline_attempts=10**6, max_backoff=5)
"""Seconds, not attempts, say when a learner is given up."""


@endpoint_command
def watch(
    endpoint: Endpoint,
    after_sequence: Annotated[
        int, typer.Option(min=0, help="Show events above this number; 0 for all that are kept.")
    ] = 0,
    wait: Annotated[
        float,
        typer.Option(min=0, help="Seconds to wait for a learner that does not answer (yet)."),
    ] = 300.0,
    plain: Annotated[
        bool, typer.Option("--plain", help="One line per event, as when not on a terminal.")
    ] = False,
) -> None:
    """Follow a run while it trains, until it ends.

    Examples:
      antiphon watch localhost:50070
      antiphon watch localhost:50070 --plain > run.log
      antiphon watch learner.example:443 --tls-ca ca.pem --token-file token

    The learner prints its address when it starts, and is waited for until then. Where the
    connection breaks, watching goes on when the learner is back. The exit code is 0 when the run
    finished or was stopped, 1 when it failed or its learner was waited for in vain.
    """
    view: View = LineView() if plain or not sys.stdout.isatty() else LiveView(endpoint.address)
    follower = _Follower(endpoint, view, wait)
    try:
        run = asyncio.run(follower.follow(after_sequence))
    except CallError as error:
        if not error.transient:
            raise
        typer.echo(f"antiphon: {follower.given_up(error)}", err=True)
        raise typer.Exit(1) from error
    if run is not None and run.state is RunState.FAILED:
        typer.echo(f"antiphon: the run failed: {run.error or 'no reason given'}", err=True)
        raise typer.Exit(1)


class _Follower:
    """Shows a run, and waits for a learner that does not answer.

    Args:
        endpoint: Where the learner is.
        view: Shows events, and what is waited for.
        wait: Seconds without an answer after which the learner is given up.
    """

    def __init__(self, endpoint: Endpoint, view: View, wait: float) -> None:
        self._endpoint = endpoint
        self._view = view
        self._wait = wait
        self._run: Run | None = None
        self._away_since: float | None = None
        self._told = False

    async def follow(self, after_sequence: int) -> Run | None:
        """Show events until the run ends; returns the run as it last stood.

        Raises:
            CallError: The learner did not answer for too long, or refuses.
        """
        async with LearnerClient(self._endpoint, retry=_AGAIN) as client:
            stream = client.watch(after_sequence, on_failure=self._failed)
            with self._view:
                async with contextlib.aclosing(stream):
                    async for event in stream:
                        self._away_since, self._told = None, False
                        self._view.show(event)
                        if isinstance(event.event, Run):
                            self._run = event.event
        return self._run

    def given_up(self, error: CallError) -> str:
        """What to tell where the learner did not answer for too long."""
        address = self._endpoint.address
        if self._run is not None:
            return (
                f"the learner at {address} has not answered for {self._wait:g} s; if its run has "
                f"not ended, watch it again once it is back. The last answer: {error.summary}"
            )
        return (
            f"no learner has answered at {address} for {self._wait:g} s (--wait); start the run, "
            f"or take the address that it prints as `watch it`. The last answer: {error.summary}"
        )

    def _failed(self, error: CallError) -> None:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        if now - self._away_since >= self._wait:
            raise error
        # A stream that breaks is opened again without a word.
        if error.rpc == "GetRun" and not self._told:
            self._told = True
            self._view.wait_for(
                f"waiting for a learner at {self._endpoint.address}, for up to {self._wait:g} s; "
                "nobody answers there yet"
                if self._run is None
                else f"the learner at {self._endpoint.address} does not answer; waiting for it"
            )
