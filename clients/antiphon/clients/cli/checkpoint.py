"""Save a checkpoint of a run."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from antiphon.clients.cli.options import endpoint_command
from antiphon.clients.endpoint import Endpoint
from antiphon.clients.learner import LearnerClient


@endpoint_command
def checkpoint(
    endpoint: Endpoint,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds to wait until it is written.")
    ] = 3600,
) -> None:
    """Save a checkpoint of a run while it trains, and print where it is.

    Examples:
      antiphon checkpoint localhost:50070
      antiphon checkpoint learner.example:443 --tls-ca ca.pem --token-file token

    The learner prints its address when it starts. A checkpoint is saved when the rollout batch
    under way is trained, or at once where the run is paused. To go on from it:
    antiphon train run.toml --resume PATH
    """
    typer.echo(asyncio.run(_save(endpoint, timeout)))


async def _save(endpoint: Endpoint, timeout: float) -> str:
    async with LearnerClient(endpoint) as client:
        return await client.save_checkpoint(timeout)
