"""Generation services of one model as processes of their own, seen as a learner sees them."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from antiphon.clients.generation import GenerationClient
from antiphon.learner.run.children import Child
from antiphon.learner.weights.connect import model_infos
from antiphon.learner.weights.replicas import Replica

START_SECONDS = 120.0
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}


@asynccontextmanager
async def services(folder: Path, count: int) -> AsyncGenerator[list[Replica], None]:
    """So many processes that serve the model in `folder`, with one thread each."""
    options = ["serve", "generation", "--model", str(folder), "--agent", "0"]
    options += ["--port", "0", "--metrics-port", "0", "--threads", "1"]
    with tempfile.TemporaryDirectory() as work:
        children = [
            Child.start(
                f"service {number}",
                options,
                log_file=Path(work) / f"{number}.log",
                address_file=Path(work) / f"{number}.json",
                environ=ENVIRONMENT,
            )
            for number in range(count)
        ]
        clients: list[GenerationClient] = []
        try:
            for child in children:
                clients.append(GenerationClient(await child.address(within=START_SECONDS)))
            replicas = [Replica(client.address, client) for client in clients]
            await model_infos(replicas, start_timeout=START_SECONDS, timeout=10.0)
            yield replicas
        finally:
            for client in clients:
                await client.close()
            for child in children:
                child.process.terminate()
            for child in children:
                child.process.wait()
