"""Real runs of the product at one to eight generation processes beside what the model says of them.

First the constants of this machine are measured, from other runs than those that are held against
the model.
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.cluster_sim_parts import measure
from benchmarks.cluster_sim_parts.cluster import simulate
from benchmarks.cluster_sim_parts.costs import Costs, EngineCosts, ProcessCosts, PushCosts, Work
from benchmarks.cluster_sim_parts.real import RealServices, real_services
from benchmarks.cluster_sim_parts.sleeping import (
    PACE,
    SCORE_SECONDS,
    SLOW_FACTOR,
    Sleeping,
    sleeping,
)
from benchmarks.cluster_sim_parts.small_model import nbytes, small_model
from benchmarks.simulated.run import Job, Steps
from transformers import AutoTokenizer

SLEEPS = EngineCosts(
    step_seconds=PACE.token_seconds, places=PACE.rows, join_share=1.0, exclusive=True
)
SIMULATED_STEPS = 24
REAL_TOKENS = 64


@dataclass(frozen=True)
class Case:
    """One real run, and what is unusual about it."""

    name: str
    job: Job
    slow: bool = False
    slow_rewards: bool = False
    full: bool = False
    real: bool = False


def _weak(replicas: int, **changes: Any) -> Job:
    """Four prompts of four completions for each replica."""
    settings = {"batches": 4, "tasks": 4 * replicas, "replicas": replicas, "tokens": 60}
    return Job(**{**settings, **changes})


TURNS = {"tasks": 4, "turns": 2, "replicas": 4, "update_seconds": 1.0}
CASES = (
    Case("1 process", _weak(1)),
    Case("2 processes", _weak(2)),
    Case("4 processes", _weak(4)),
    Case("8 processes", _weak(8)),
    Case("8 processes, twice the rows that fit", _weak(8, tasks=64, batches=3)),
    Case("two agents of 4 processes, two turns", _weak(4, agents=2, turns=2, tasks=4)),
    Case("8 processes, short completions", _weak(8, tokens=10, batches=16)),
    Case(f"8 processes, one {SLOW_FACTOR:g} times slower", _weak(8), slow=True),
    Case("4 processes, two turns, an update of 1 s", _weak(**TURNS)),
    Case("the same, max_staleness 1", _weak(**TURNS, staleness=1, batches=6)),
    Case(f"the same, scores of {SCORE_SECONDS:g} s", _weak(**TURNS), slow_rewards=True),
    Case("2 processes, all tensors pushed", _weak(2, tokens=10), full=True),
    Case("8 processes, all tensors pushed", _weak(8, tokens=10), full=True),
    Case(
        "1 process that decodes",
        Job(batches=3, tasks=4, tokens=REAL_TOKENS),
        real=True,
    ),
    Case(
        "2 processes that decode, two turns",
        Job(batches=3, tasks=4, turns=2, replicas=2, tokens=REAL_TOKENS),
        real=True,
    ),
)


@dataclass(frozen=True)
class Machine:
    """The constants of this machine.

    Attributes:
        learner: Of the learner's process.
        service: Of all services together.
        pushes: By what is pushed: `delta` where nothing has changed, `full`.
        engine: Of the model that decodes, on one thread.
        update: Of its update, on one thread.
    """

    learner: ProcessCosts
    service: ProcessCosts
    pushes: dict[str, PushCosts]
    engine: EngineCosts
    update: measure.UpdateCosts

    def costs(self, case: Case) -> Costs:
        """What the model is told of a case."""
        return Costs(
            engine=self.engine if case.real else SLEEPS,
            learner=self.learner,
            service=self.service,
            push=self.pushes["full" if case.full or case.real else "delta"],
            service_cores=max(1, (os.cpu_count() or 1) - 1),
            score_seconds=SCORE_SECONDS if case.slow_rewards else 0.0,
        )

    def work(self, case: Case) -> Work:
        """The job of a case as the model takes it."""
        job = case.job
        work = Work(
            steps=SIMULATED_STEPS,
            tasks=job.tasks,
            turns=job.turns,
            generations=job.generations,
            tokens=job.tokens,
            shortest=1.0 if case.real else PACE.shortest,
            prompt_tokens=4,
            agents=job.agents,
            replicas=job.replicas,
            slow={job.replicas - 1: SLOW_FACTOR} if case.slow else {},
            staleness=job.staleness,
            update_seconds=job.update_seconds,
        )
        return replace(work, update_seconds=self.update.seconds(work)) if case.real else work


@dataclass
class Validation:
    """What was measured and what was said: `rows` hold both for each case."""

    machine: Machine
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def worst(self) -> float:
        """The largest relative error."""
        return max(abs(row["error"]) for row in self.rows)

    def constants(self) -> dict[str, Any]:
        """The machine's constants as plain values; what is infinite is left out."""

        def plain(value: Any) -> Any:
            if isinstance(value, dict):
                return {k: plain(v) for k, v in value.items() if v != math.inf}
            return value

        found: dict[str, Any] = plain(asdict(self.machine))
        return found


def validate() -> Validation:
    """Measure the constants, run every case, and hold the model against it."""
    logging.getLogger("antiphon").setLevel(logging.ERROR)
    with TemporaryDirectory(prefix="antiphon-") as temporary:
        folder = Path(temporary)
        with sleeping(folder) as sleepers, real_services(folder / "model", 2) as decoders:
            machine = _machine(sleepers, decoders)
            found = Validation(machine)
            for case in CASES:
                if case.real:
                    steps = decoders.run(case.job, sleepers.reward)
                else:
                    options = {"delta_pushes": False} if case.full else {}
                    slow = {"slow": case.slow, "slow_rewards": case.slow_rewards}
                    steps = sleepers.run(case.job, **slow, **options).steps
                found.rows.append(_row(case, steps, machine))
                print("{name}: {measured:.2f} s, {simulated:.2f} s".format(**found.rows[-1]))
    return found


def _machine(sleepers: Sleeping, decoders: RealServices) -> Machine:
    engine = decoders.engine()  # Before a run has pushed weights, which are then asked for.
    learner, service = measure.processes(sleepers, PACE.shortest)
    tokenizer = AutoTokenizer.from_pretrained(sleepers.folder / "model")
    weights = nbytes(small_model(tokenizer, 0))
    return Machine(
        learner=learner,
        service=service,
        pushes=measure.pushes(sleepers, weights, learner.per_push + service.per_push),
        update=measure.update(
            lambda job: median(decoders.run(job, sleepers.reward).update_seconds), REAL_TOKENS // 2
        ),
        engine=engine,
    )


def _row(case: Case, steps: Steps, machine: Machine) -> dict[str, Any]:
    found = simulate(machine.work(case), machine.costs(case))
    if steps.staleness != found.staleness:
        raise RuntimeError(
            f"{case.name}: staleness {steps.staleness}, and {found.staleness} in the model"
        )
    return {
        "name": case.name,
        "processes": case.job.agents * case.job.replicas,
        "measured": median(steps.seconds),
        "simulated": found.step,
        "error": found.step / median(steps.seconds) - 1,
    }
