"""Real runs of the product at one to eight generation processes beside what the model says of them.

First the constants of this machine are measured, from other runs than those that are held against
the model; those of an engine and its update just before the cases that decode.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
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
CORES = len(os.sched_getaffinity(0))
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
            cores=CORES,
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

    def constants(self) -> dict[str, Any]:
        """As plain values; what is infinite is left out."""

        def plain(value: Any) -> Any:
            if isinstance(value, dict):
                return {k: plain(v) for k, v in value.items() if v != math.inf}
            return value

        found: dict[str, Any] = plain(asdict(self))
        return found

    @classmethod
    def of(cls, constants: dict[str, Any]) -> Machine:
        """What `constants` told."""
        return cls(
            learner=ProcessCosts(**constants["learner"]),
            service=ProcessCosts(**constants["service"]),
            pushes={name: PushCosts(**push) for name, push in constants["pushes"].items()},
            engine=EngineCosts(**constants["engine"]),
            update=measure.UpdateCosts(**constants["update"]),
        )


def validate() -> tuple[Machine, dict[str, float]]:
    """Measure the constants, and run every case: seconds of a step by name."""
    logging.getLogger("antiphon").setLevel(logging.ERROR)
    with TemporaryDirectory(prefix="antiphon-") as temporary:
        folder = Path(temporary)
        with sleeping(folder) as sleepers:
            slept = _processes(sleepers)
            ran = [_slept(case, sleepers) for case in CASES if not case.real]
            with real_services(folder / "model", 2) as decoders:
                machine = _decoding(slept, decoders, sleepers.reward)
                ran += [decoders.run(case.job, sleepers.reward) for case in CASES if case.real]
    cases = sorted(CASES, key=lambda case: case.real)
    for case, steps in zip(cases, ran, strict=True):
        if steps.staleness != case.job.staleness:
            raise RuntimeError(
                f"{case.name}: got a staleness of {steps.staleness}, wanted {case.job.staleness}"
            )
    return machine, {
        case.name: median(steps.seconds) for case, steps in zip(cases, ran, strict=True)
    }


def _processes(sleepers: Sleeping) -> tuple[ProcessCosts, ProcessCosts, dict[str, PushCosts]]:
    """The constants of learner, services and pushes, which services give that sleep."""
    learner, service = measure.processes(sleepers, PACE.shortest)
    tokenizer = AutoTokenizer.from_pretrained(sleepers.folder / "model")
    weights = nbytes(small_model(tokenizer, 0))
    pushes = measure.pushes(sleepers, weights, learner.per_push, service.per_push, CORES)
    return learner, service, pushes


def _decoding(
    slept: tuple[ProcessCosts, ProcessCosts, dict[str, PushCosts]],
    decoders: RealServices,
    reward: str,
) -> Machine:
    """All constants, with those that services give which decode."""
    learner, service, pushes = slept
    return Machine(
        learner=learner,
        service=service,
        pushes=pushes,
        engine=decoders.engine(),  # Before a run has pushed weights, which are then asked for.
        update=measure.update(
            lambda job: median(decoders.run(job, reward).update_seconds), REAL_TOKENS // 2
        ),
    )


def _slept(case: Case, sleepers: Sleeping) -> Steps:
    options = {"delta_pushes": False} if case.full else {}
    slow = {"slow": case.slow, "slow_rewards": case.slow_rewards}
    return sleepers.run(case.job, **slow, **options).steps


def compared(machine: Machine, seconds: Mapping[str, float]) -> list[dict[str, Any]]:
    """What the model says of each case beside its measured seconds of a step, by name."""
    rows = []
    for case in CASES:
        found, measured = simulate(machine.work(case), machine.costs(case)), seconds[case.name]
        if found.staleness != case.job.staleness:
            raise RuntimeError(
                f"{case.name}: a staleness of {found.staleness} in the model, "
                f"wanted {case.job.staleness}"
            )
        rows.append(
            {
                "name": case.name,
                "processes": case.job.agents * case.job.replicas,
                "measured": measured,
                "simulated": found.step,
                "error": found.step / measured - 1,
            }
        )
    return rows
