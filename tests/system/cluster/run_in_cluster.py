"""A run of the overlay in a cluster, and what it left on its volume."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.support import run_folders
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.job import Job

from antiphon.clients.learner import LearnerClient


class ClusterRun:
    """The learner's Job, from the run's beginning.

    All runs of one cluster are one run to the services, which belong to it.

    Args:
        cluster: Where; agents, reward and transition are there.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        if self.folder.exists():
            run = (self.folder / "run.json").read_text()
            shutil.rmtree(self.folder)
            self.folder.mkdir()
            (self.folder / "run.json").write_text(run)
        self.job = Job(cluster, "learner")

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._cluster.volume("runs") / "length-ratio"

    @property
    def run_id(self) -> str:
        """What the services know the run by."""
        return str(json.loads((self.folder / "run.json").read_text())["run_id"])

    @property
    def said(self) -> str:
        """All that the newest learner has written."""
        return self.job.pod.log_file.read_text(errors="replace")

    @property
    def trained(self) -> int:
        """Prompts that are in the record so far."""
        file = self.folder / "metrics.jsonl"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def wait_trained(self, prompts: int, seconds: float = 120) -> None:
        """Return when so many prompts have been trained, and the run goes on."""
        self._cluster.wait(
            lambda: self.trained >= prompts or self.job.state != "Active",
            f"{prompts} prompts are trained",
            seconds,
        )
        assert self.job.state == "Active", f"the run ended too early\n{self._cluster.told()}"

    async def paused_until(self, condition: Callable[[], bool]) -> None:
        """Hold the run before its next rollout batch until something holds."""
        async with LearnerClient(f"{self.job.pod.address}:50051") as learner:
            await learner.pause(10)
            await asyncio.to_thread(self._cluster.wait, condition, "what the run is paused for")
            await learner.resume(10)

    def metric(self, name: str, **labels: str) -> float:
        """A sum over the learner's series of that name which have these labels, as of now."""
        return metric(f"{self.job.pod.address}:9464", name, **labels)

    def weights(self) -> list[bytes]:
        """The trained agents' files."""
        return [(self.folder / f"agent_{n}/model.safetensors").read_bytes() for n in range(2)]

    def assert_every_prompt_once(self, epochs: int, rows: int) -> None:
        """Every row of the dataset is in the trees and in the record once per epoch."""
        roots = [row for row in run_folders.rollout_rows(self.folder) if not row["path"]]
        trained = sorted({(row["epoch"], row["row"], row["prompts_before"]) for row in roots})
        assert [(epoch, row) for epoch, row, _ in trained] == [
            (epoch, row) for epoch in range(1, epochs + 1) for row in range(rows)
        ]
        told = [row["prompts"] for row in run_folders.metrics(self.folder)]
        assert told == list(range(1, epochs * rows + 1))


def metric(address: str, name: str, **labels: str) -> float:
    """A sum over the series of that name which have these labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", text, re.MULTILINE)
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(float(value) for of, value in found if all(label in of for label in wanted))
