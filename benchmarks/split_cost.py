"""What separate services cost: seconds of a step that one process would not spend.

The same job with services as a local run starts them (a process for each agent's engine, every
call over gRPC), and with the same loop and engines in one process, where a call is a call. Both
sides in turn, each in a process of its own with one thread per engine; the first step of each is
left out. Both must have generated and trained the same number of tokens, for the same rewards.

By itself it takes the model of seven million parameters, where a step is short and what the split
costs weighs more: python -m benchmarks.split_cost [small] [smollm2]
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.results import Row, write
from benchmarks.seed_job_parts import model
from benchmarks.seed_job_parts.job import Job, reward_function
from examples.length_ratio import length_feedback

WANTED = 0.03
SIDES = ("services", "one_process")


@dataclass(frozen=True)
class Case:
    """A job, the steps of it that are measured, and how often each side is run."""

    make: Any
    job: Job
    steps: int
    rounds: int = 2


CASES = {
    "smollm2": Case(model.smollm2, Job(max_new_tokens=32), steps=2, rounds=1),
    "small": Case(model.small, Job(num_turns=2), steps=6),
}


def train(side: str, folder: Path, out: Path, job: Job, steps: int) -> None:
    """One run of one side; writes the metrics to `out`."""
    from benchmarks.split_cost_parts.one_process import in_one_process
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from antiphon.learner import MAGRPOConfig, MAGRPOTrainer

    trainer = MAGRPOTrainer(
        agents=[AutoModelForCausalLM.from_pretrained(folder) for _ in range(2)],
        tokenizer=AutoTokenizer.from_pretrained(folder),
        reward_func=reward_function(lambda: None),
        external_transition=length_feedback,
        train_dataset=job.rows(),
        args=MAGRPOConfig(
            **{
                **job.options(),
                "num_train_epochs": steps + 1,
                "logging_steps": 1,
                "checkpoint_interval": 0,
                "wire_dtype": "float32",
            }
        ),
        run_directory=out,
        run_name="run",
        wandb_config={"verbose": False},
    )
    with in_one_process() if side == "one_process" else contextlib.nullcontext():
        trainer.train()


def measured(side: str, folder: Path, case: Case) -> tuple[list[float], list[Any]]:
    """Seconds of each step but the first, and what was generated and trained in it."""
    with TemporaryDirectory(prefix="antiphon-") as out:
        arguments = [side, str(folder), out, json.dumps([vars(case.job), case.steps])]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        subprocess.run(
            [sys.executable, "-m", "benchmarks.split_cost", "--side", *arguments],
            env=environ,
            check=True,
        )
        lines = (Path(out) / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    times = [row["time"] for row in rows if "agent_0/steps" in row]
    work = [
        {name: value for name, value in row.items() if name.endswith(("tokens", "reward_mean"))}
        for row in rows
    ]
    return [after - before for before, after in pairwise(times)], work


def compare(case: Case) -> dict[str, Any]:
    """Both sides in turn."""
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    works: list[Any] = []
    with TemporaryDirectory(prefix="antiphon-") as temporary:
        folder = case.make(Path(temporary))
        for _ in range(case.rounds):
            for side in SIDES:
                found, work = measured(side, folder, case)
                seconds[side] += found
                works.append(work)
    if any(work != works[0] for work in works):
        raise RuntimeError(f"the sides did different work: {works}")
    split, one = (median(seconds[side]) for side in SIDES)
    return {
        "seconds_per_step": {"services": split, "one_process": one},
        "seconds_of_the_split": split - one,
        "share": (split - one) / one,
        "every_step": seconds,
        "job": vars(case.job),
    }


def main(names: list[str]) -> None:
    """Measure and write the row."""
    cases = {name: compare(CASES[name]) for name in names or ["small"]}
    first = next(iter(cases.values()))
    write(
        Row(
            name="split_cost",
            value=first["share"],
            unit="of a step",
            wanted=f"at most {WANTED}",
            holds=first["share"] <= WANTED,
            baseline="the same loop and engines in one process, same run",
            details=cases,
        )
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        job, steps = json.loads(sys.argv[5])
        train(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), Job(**job), steps)
    else:
        main(sys.argv[1:])
