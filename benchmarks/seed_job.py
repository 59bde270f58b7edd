"""One prompt of the seed job, start to end: antiphon and CoMLRL on the same work.

    make bench-seed-job
    python -m benchmarks.seed_job --rows seed_job_small

Four rows: SmolLM2-135M, two turns (`seed_job`); a model of seven million parameters, three turns,
where overhead decides (`seed_job_small`); both models, two turns, four prompts sampled together
before the update, on cores that two other processes keep busy (`seed_job_smollm2_batch` and
`seed_job_batch`), where ours is run on a quiet machine too. There CoMLRL is ended after a time, and
what it would have taken is projected from the joint actions that it had sampled, as if an update
took no time. Two agents, four generations, 64 tokens, every branch to its last turn,
strictly on-policy, CoMLRL's defaults otherwise. Both sides in turn, each as its users start it. A
period is what lies between the first rewards of two successive batches.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.peer import BASELINE, ROOT, peer_python
from benchmarks.processes import WatchedMemory
from benchmarks.seed_job_parts import model
from benchmarks.seed_job_parts.job import Job
from benchmarks.seed_job_parts.limit import least_seconds

MODULE = "benchmarks.seed_job_parts.one_run"


@dataclass(frozen=True)
class Benchmark:
    """One row: a job with its model, what is wanted, and what else the machine does meanwhile.

    `limit` are the seconds after which CoMLRL is ended. Ours measures `periods`. All processes
    together may take `most_memory` times CoMLRL's, where that is asked.
    """

    job: Job
    model: Callable[[Path], Path]
    wanted: float
    busy: int = 0
    limit: float | None = None
    periods: int = 2
    most_memory: float | None = None

    @property
    def wanted_text(self) -> str:
        """What is wanted, in words."""
        memory = "" if self.most_memory is None else f"; memory at most {self.most_memory:g} times"
        return f"at least {self.wanted:g}{memory}"


ROWS = {
    "seed_job": Benchmark(Job(), model.smollm2, wanted=3, most_memory=1.3),
    "seed_job_small": Benchmark(Job(num_turns=3), model.small, wanted=8),
    "seed_job_smollm2_batch": Benchmark(
        Job(prompts=4), model.smollm2, wanted=5, busy=2, limit=700, periods=1
    ),
    "seed_job_batch": Benchmark(Job(prompts=4), model.small, wanted=5, busy=2, limit=180),
}


@dataclass(frozen=True)
class Side:
    """What one side took.

    Seconds of a `period`, processor seconds of it (`cpu`), seconds from the start of the process to
    the first reward (`start`) and to the end of one period (`together`); `memory` of all processes
    at most until the last period ends, in bytes. Where it has not `finished`, all of it is at least
    what it would have taken, and `projected` a period at the rate of its sampling, no time counted
    for an update. `stages` are antiphon's seconds of a period by stage; what a run does before its
    first period, like the first push, is in the first of them.
    """

    period: float
    cpu: float | None
    start: float
    together: float
    memory: int
    finished: bool = True
    projected: float | None = None
    stages: dict[str, float] = field(default_factory=dict)


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Others that keep the cores busy."""
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def run(side: str, job: Job, folder: Path, out: Path, limit: float | None) -> Side:
    """Run one side in a process of its own.

    Raises:
        ValueError: It has not done the work that it was to do.
    """
    out.unlink(missing_ok=True)
    python = str(peer_python()) if side == "comlrl" else sys.executable
    arguments = [side, str(folder), str(out), json.dumps(asdict(job))]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
        "WANDB_MODE": "disabled",
    }
    process = subprocess.Popen(
        [python, "-m", MODULE, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    with WatchedMemory(process.pid) as watched:
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            if not out.exists():
                raise ValueError(f"{side} has scored nothing in {limit} s") from None
            return _unfinished(json.loads(out.read_text()), job, watched.peak(), limit or 0.0)
    if code:
        raise ValueError(f"{side} ended with code {code}")
    told = json.loads(out.read_text())
    return _finished(told, job, watched.peak(told["seconds"][-1]), side)


def _finished(told: dict[str, Any], job: Job, memory: int, side: str) -> Side:
    steps, tokens = job.steps * job.periods, job.tokens * job.periods
    if set(told["steps"]) != {steps} or abs(told["tokens"] / tokens - 1) > 0.01:
        raise ValueError(
            f"{side}: {told['steps']} optimiser steps and {told['tokens']} tokens, wanted {steps} "
            f"for each agent and {tokens}"
        )
    seconds, cpu = told["seconds"], told["cpu"]
    return Side(
        period=statistics.median(b - a for a, b in itertools.pairwise(seconds)),
        cpu=statistics.median(b - a for a, b in itertools.pairwise(cpu)),
        start=seconds[0],
        together=seconds[1],
        memory=memory,
        stages={name: statistics.median(some) for name, some in told.get("stages", {}).items()},
    )


def _unfinished(told: dict[str, Any], job: Job, memory: int, limit: float) -> Side:
    first = told["seconds"][0]
    sampled = told["rewards"] / job.joint_actions
    period = limit - first
    projected = period / min(sampled, 1.0)
    return Side(period, None, first, limit, memory, finished=False, projected=projected)


def measure(name: str, folder: Path) -> None:
    """Run both sides of a row and write it."""
    row = ROWS[name]
    start = row.model(folder / row.model.__name__)
    least = least_seconds(row.job, start)
    asked = replace(row.job, periods=row.periods)
    quiet = run("antiphon", asked, start, folder / "o", None) if row.busy else None
    with busy(row.busy):
        ours = run("antiphon", asked, start, folder / "o", None)
        peer = run("comlrl", row.job, start, folder / "c", row.limit)
    ratio = (peer.projected or peer.period) / ours.period
    memory = ours.memory / peer.memory
    at_least = "" if peer.finished else "at least "
    print(
        f"{name}: antiphon {ours.period:.1f} s a period, {ours.start:.1f} s to the first reward; "
        f"{BASELINE} {at_least}{peer.period:.1f} s, {peer.start:.1f}"
        + ("" if peer.projected is None else f"; projected {peer.projected:.1f} s")
    )
    stages = ", ".join(f"{stage} {spent:.1f} s" for stage, spent in ours.stages.items())
    print(
        f"of antiphon's period: {stages}; its products and reads alone: sampling "
        f"{least.sampling:.1f} s, update {least.update:.1f} s"
    )
    results.write(
        results.Row(
            name=name,
            value=ratio,
            unit="times",
            wanted=row.wanted_text,
            holds=ratio >= row.wanted and memory <= (row.most_memory or math.inf),
            baseline=f"seconds of {BASELINE} over those of antiphon",
            details={
                "job": asdict(row.job),
                "model": row.model.__name__,
                "busy_processes": row.busy,
                "antiphon": asdict(ours),
                "comlrl": asdict(peer),
                "comlrl_at_least": not peer.finished,
                "ratio_at_least": peer.period / ours.period,
                "ratio_with_start": peer.together / ours.together,
                "cpu_ratio": peer.cpu and ours.cpu and peer.cpu / ours.cpu,
                "memory_ratio": memory if peer.finished else None,
                "times_of_a_quiet_machine": quiet and ours.period / quiet.period,
                "least_seconds": asdict(least),
                "of_the_least": least.period / ours.period,
            },
        )
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    told = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        for name in told.rows:
            measure(name, Path(folder))


if __name__ == "__main__":
    main()
