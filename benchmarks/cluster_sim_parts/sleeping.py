"""The product's learner against generation services that sleep, each a process of its own.

All of them are started once: `EVEN` replicas of the same pace and one that is slower, a reward
service that answers at once and one that takes its time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cluster_sim_parts.small_model import small_folder, small_model
from benchmarks.processes import cpu_seconds
from benchmarks.simulated.run import WARM, Job, Steps, trained, updates_that_sleep
from benchmarks.simulated.serve import Services, served

EVEN = 8
SLOW_FACTOR = 6.0
SCORE_SECONDS = 0.3
PACE = Services(token_seconds=0.01, rows=16, shortest=0.5)


@dataclass(frozen=True)
class Run:
    """What a run took: steps, and processor seconds per step of the learner and of all services.

    `push_seconds` are those of an agent's publish, median.
    """

    steps: Steps
    learner: float
    services: float
    push_seconds: float


@dataclass(frozen=True)
class Sleeping:
    """The services while they are there."""

    folder: Path
    pids: list[int]

    @property
    def reward(self) -> str:
        """Address of the reward service that answers at once."""
        return f"unix:{self.folder}/reward.sock"

    def addresses(self, job: Job, *, slow: bool) -> list[list[str]]:
        """Of each agent's replicas; `slow` puts the slow one last."""
        sockets = [f"unix:{self.folder}/{number}.sock" for number in range(EVEN)]
        if slow:
            sockets[job.replicas - 1] = f"unix:{self.folder}/slow.sock"
        return [
            sockets[agent * job.replicas : (agent + 1) * job.replicas]
            for agent in range(job.agents)
        ]

    def run(
        self,
        job: Job,
        *,
        slow: bool = False,
        slow_rewards: bool = False,
        stepped: bool = True,
        **options: Any,
    ) -> Run:
        """Train a job; `stepped` says whether its updates publish."""
        marks: list[tuple[float, float]] = []
        of_a_batch, updates = job.nodes * job.agents, count()

        def mark() -> None:
            if next(updates) % of_a_batch == 0:
                used = sum(cpu_seconds(pid) for pid in self.pids)
                marks.append((time.process_time(), used))

        name = f"run-{time.monotonic_ns()}"
        steps = trained(
            job,
            self.folder,
            name,
            self.addresses(job, slow=slow),
            f"unix:{self.folder}/slow_reward.sock" if slow_rewards else self.reward,
            model=small_model,
            around=updates_that_sleep(job, mark, stepped=stepped),
            **options,
        )
        begins = marks[WARM:-WARM]
        learner, services = (
            (last - first) / (len(begins) - 1)
            for first, last in zip(begins[0], begins[-1], strict=True)
        )
        return Run(steps, learner, services, median(steps.push_seconds))


@contextlib.contextmanager
def sleeping(folder: Path) -> Iterator[Sleeping]:
    """All services, in processes of their own, while the block runs."""
    model = small_folder(folder / "model")
    of_replicas = [replace(PACE, sockets=(f"{folder}/{n}.sock",)) for n in range(EVEN)]
    slow = f"{folder}/slow.sock"
    of_replicas += [replace(PACE, sockets=(slow,), slow_socket=slow, slow_factor=SLOW_FACTOR)]
    rewards = [
        Services(reward_socket=f"{folder}/reward.sock"),
        Services(reward_socket=f"{folder}/slow_reward.sock", score_seconds=SCORE_SECONDS),
    ]
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        with served(model, *of_replicas, *rewards) as pids:
            yield Sleeping(folder, pids)
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before
