"""Evaluate a run while it trains."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Annotated

import typer

from antiphon.clients.cli.options import endpoint_command
from antiphon.clients.endpoint import Endpoint
from antiphon.clients.learner import LearnerClient


@endpoint_command
def evaluate(
    endpoint: Endpoint,
    samples: Annotated[
        int, typer.Option(min=0, help="Most tasks to evaluate; 0 for the run's setting.")
    ] = 0,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for all of it.")] = 3600,
) -> None:
    """Evaluate a run while it trains: a line per task, then the figures of all.

    Examples:
      antiphon evaluate localhost:50070
      antiphon evaluate localhost:50070 --samples 100

    The learner prints its address when it starts. It evaluates when the rollout batch under way is
    trained, or at once where the run is paused; the run needs an evaluation dataset.
    """
    asyncio.run(_evaluate(endpoint, samples, timeout))


async def _evaluate(endpoint: Endpoint, samples: int, timeout: float) -> None:
    async with LearnerClient(endpoint) as client:
        results = client.evaluate(samples or None, timeout=timeout)
        async with contextlib.aclosing(results):
            async for result in results:
                if result.task_id:
                    typer.echo(f"{result.task_id}  {_rewards(result.values)}")
                else:
                    for name, value in sorted(result.values.items()):
                        typer.echo(f"{name} {value:.6g}")


def _rewards(values: Mapping[str, float]) -> str:
    rewards = {name: value for name, value in values.items() if name.endswith("/reward_mean")}
    return (
        "  ".join(f"{name} {value:.6g}" for name, value in sorted(rewards.items())) or "no reward"
    )
