"""What this machine's processes, pushes, engine and update cost, each taken of real runs and calls.

Processes: runs whose completions have one token, so that hardly anything but the calls is left.
Their processor seconds per step, as sums of so many seconds for each thing that there was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from benchmarks.cluster_sim_parts.costs import EngineCosts, ProcessCosts, PushCosts, Work
from benchmarks.cluster_sim_parts.sleeping import Sleeping
from benchmarks.simulated.run import Job

from antiphon.clients.generation import GenerationClient
from antiphon.clients.types import GenerateRequest, PromptSamples, SamplingParameters, TokenIds

BATCHES = 18
"""Steps of each run: processor seconds come in hundredths, and are those of nine processes."""
JOBS: tuple[tuple[dict[str, Any], bool], ...] = (
    ({"tasks": 1}, True),
    ({"tasks": 1}, False),
    ({"tasks": 8, "replicas": 8}, True),
    ({"tasks": 8, "replicas": 8}, False),
    ({"tasks": 32, "replicas": 1}, False),
    ({"tasks": 32, "replicas": 8}, False),
    ({"tasks": 1, "generations": 64}, False),
    ({"tasks": 1, "generations": 16, "tokens": 200}, False),
)
"""Jobs of one token but for the last, and whether their updates publish."""
PARTS = ("per_step", "per_call", "per_completion", "per_token", "per_node", "per_push")


def parts_of(job: Job, shortest: float, *, stepped: bool) -> list[float]:
    """How many of each of `PARTS` a step has, and of publishes."""
    nodes = job.nodes
    completions = nodes * job.agents * job.generations
    tokens = completions * job.tokens * (1 + shortest) / 2 if job.tokens > 1 else completions
    replicas = job.agents * job.replicas
    pushed = [replicas, job.agents] if stepped else [0, 0]
    return [1, replicas * job.turns, completions, tokens, nodes, *pushed]


def shared_out(counts: list[list[float]], seconds: list[float]) -> list[float]:
    """Seconds for one of each part, none below 0: least squares of the relative errors.

    A part that comes out below 0 is left out, and the others are shared out anew.
    """
    table, found = np.array(counts), np.array(seconds)
    scale = 1 / found
    used = list(range(table.shape[1]))
    while True:
        solved = np.linalg.lstsq(table[:, used] * scale[:, None], found * scale, rcond=None)[0]
        if (solved >= 0).all():
            break
        used.pop(int(np.argmin(solved)))
    each = dict(zip(used, solved, strict=True))
    return [float(each.get(part, 0.0)) for part in range(table.shape[1])]


def processes(services: Sleeping, shortest: float) -> tuple[ProcessCosts, ProcessCosts]:
    """Processor seconds of the learner, and of all services together.

    What a publish costs whatever its replicas is left out: `pushes` has it in `encode_seconds`.
    """
    counts, of_learner, of_services = [], [], []
    for settings, stepped in JOBS:
        job = Job(**{"batches": BATCHES, "tokens": 1, **settings})
        run = services.run(job, stepped=stepped)
        counts.append(parts_of(job, shortest, stepped=stepped))
        of_learner.append(run.learner)
        of_services.append(max(run.services, 1e-4))
    learner, service = (shared_out(counts, found) for found in (of_learner, of_services))
    return (
        ProcessCosts(**dict(zip(PARTS, learner, strict=False))),
        ProcessCosts(**dict(zip(PARTS, service, strict=False))),
    )


def pushes(
    services: Sleeping, nbytes: float, learner: float, service: float, cores: int
) -> dict[str, PushCosts]:
    """What a publish takes: where nothing changed (`delta`), and of all tensors (`full`).

    A full one to R replicas takes e + R nbytes / link beside what their calls do; one and four
    replicas give both.

    Args:
        services: To which is pushed.
        nbytes: Of all tensors.
        learner: Processor seconds of the learner for a call, one after another.
        service: Those of a service, as many side by side as there are cores.
        cores: Of this machine.
    """

    def calls(replicas: int) -> float:
        return replicas * learner + max(1.0, replicas / cores) * service

    def seconds(replicas: int, **options: Any) -> float:
        job = Job(batches=BATCHES, tokens=1, replicas=replicas, tasks=replicas)
        return services.run(job, **options).push_seconds - calls(replicas)

    one, four = (seconds(replicas, delta_pushes=False) for replicas in (1, 4))
    each = max((four - one) / 3, 1e-6)
    return {
        "delta": PushCosts(encode_seconds=max(0.0, seconds(1))),
        "full": PushCosts(nbytes=nbytes, link=nbytes / each, encode_seconds=max(0.0, one - each)),
    }


@dataclass(frozen=True)
class UpdateCosts:
    """Seconds of an update of one agent, on one thread: of each step, and of each trained token."""

    per_step: float
    per_token: float

    def seconds(self, work: Work) -> float:
        """Of a rollout batch with a step for each node."""
        nodes = sum(work.nodes)
        return nodes * (self.per_step + work.generations * work.tokens * self.per_token)


def update(run: Callable[[Job], float], tokens: int) -> UpdateCosts:
    """From two real runs whose steps have few and many tokens; `run` gives a batch's seconds."""
    few, many = (Job(batches=4, tasks=2, tokens=n, generations=4) for n in (4, tokens))
    short, long = (run(job) / job.nodes for job in (few, many))
    per_token = (long - short) / (4 * (many.tokens - few.tokens))
    return UpdateCosts(max(0.0, short - 16 * per_token), per_token)


ROWS = (4, 8, 16, 32)
"""Rows of a decode step that are measured."""
DECODED = 48
PROMPTS = (8, 8 + 1024)


async def engine(client: GenerationClient, joins: EngineCosts, repeats: int = 3) -> EngineCosts:
    """A decode step of few and of many rows, and a prompt's tokens, asked of one service.

    `joins` says how rows join; what they cost is measured.
    """

    async def seconds(rows: int, tokens: int, prompt: int) -> float:
        request = GenerateRequest(
            run_id="measure",
            incarnation=1,
            agent=0,
            min_weights_version=0,
            prompts=(PromptSamples(TokenIds((5,) * prompt), tuple(range(rows))),),
            sampling=SamplingParameters(0.6, 50, 0.6, tokens),  # A run's defaults.
        )
        began = time.perf_counter()
        async for _ in client.generate(request, timeout=60.0):
            pass
        return time.perf_counter() - began

    async def usual(rows: int, tokens: int, prompt: int) -> float:
        return median([await seconds(rows, tokens, prompt) for _ in range(repeats)])

    await seconds(ROWS[-1], 4, PROMPTS[0])
    steps = []
    for rows in ROWS:
        first, all_of_them = [await usual(rows, tokens, PROMPTS[0]) for tokens in (2, DECODED)]
        steps.append((all_of_them - first) / (DECODED - 2))
    fixed, each = shared_out([[1, rows] for rows in ROWS], steps)
    short, long = [await usual(1, 1, prompt) for prompt in PROMPTS]
    return replace(
        joins,
        step_seconds=fixed,
        row_seconds=each,
        prompt_seconds=max(0.0, long - short) / (PROMPTS[1] - PROMPTS[0]),
    )
