"""Generation services that decode: the product's own, each a process with one thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from benchmarks.cluster_sim_parts import measure
from benchmarks.cluster_sim_parts.costs import EngineCosts
from benchmarks.cluster_sim_parts.small_model import small_model
from benchmarks.push_parts.services import ENVIRONMENT, START_SECONDS
from benchmarks.simulated.run import Job, Steps, trained

from antiphon.clients.generation import GenerationClient
from antiphon.learner.run.children import Child, stop_children

JOINS = EngineCosts(places=64, join_share=1 / 8, exclusive=True)
"""How rows join in the `transformers` engine; what they cost is measured."""


class RealServices:
    """So many replicas of one agent.

    Args:
        folder: Of the model; the processes' files go beside it.
        addresses: Of the processes.
    """

    def __init__(self, folder: Path, addresses: list[str]) -> None:
        self._folder = folder
        self._addresses = addresses
        self._runs = 0

    def run(self, job: Job, reward: str) -> Steps:
        """Train a job for real: sampling, update and pushes of all tensors."""
        self._runs += 1
        addresses = [self._addresses[: job.replicas]]
        return trained(
            job,
            self._folder.parent,
            f"real-{self._runs}",
            addresses,
            reward,
            model=small_model,
            around=nullcontext(),
            delta_pushes=False,
        )

    def engine(self) -> EngineCosts:
        """What the first of them takes for its tokens."""

        async def ask() -> EngineCosts:
            client = GenerationClient(self._addresses[0])
            try:
                return await measure.engine(client, JOINS)
            finally:
                await client.close()

        return asyncio.run(ask())


@contextlib.contextmanager
def real_services(folder: Path, count: int) -> Iterator[RealServices]:
    """So many processes that serve the model in `folder` while the block runs."""
    options = ["serve", "generation", "--model", str(folder), "--agent", "0", "--run-lease", "0"]
    options += ["--port", "0", "--metrics-port", "0", "--threads", "1"]
    children = [
        Child.start(
            f"service {number}",
            options,
            log_file=folder.parent / f"real-{number}.log",
            address_file=folder.parent / f"real-{number}.json",
            environ=ENVIRONMENT,
        )
        for number in range(count)
    ]

    async def addresses() -> list[str]:
        return [await child.address(within=START_SECONDS) for child in children]

    try:
        yield RealServices(folder, asyncio.run(addresses()))
    finally:
        stop_children(children, grace=10.0)
