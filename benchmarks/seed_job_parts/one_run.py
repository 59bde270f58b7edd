"""One side of the job: python -m benchmarks.seed_job_parts.one_run SIDE MODEL OUT JOB.

Runs in either environment; imports its own side's trainer only. The clock starts when this process
does. A period ends with the first reward of the next, so between two first rewards lies everything
that a period costs; after the last one the run is ended, and what it has done is told.
"""

from __future__ import annotations

import time

BEGAN = time.perf_counter()

import contextlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Callable  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from benchmarks.processes import cpu_seconds  # noqa: E402
from benchmarks.seed_job_parts.job import Job, reward_function  # noqa: E402
from examples.length_ratio import length_feedback  # noqa: E402


class EnoughError(Exception):
    """All periods have been measured."""


@dataclass
class Told:
    """The times of the first reward of each period, and of what a run is asked to end with."""

    job: Job
    out: Path
    end: Callable[[], None]
    rewards: int = 0
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    ended: bool = False

    def reward(self) -> None:
        """A joint action is about to be scored."""
        if self.rewards == self.job.joint_actions * len(self.seconds):
            self.seconds.append(time.perf_counter() - BEGAN)
            self.cpu.append(cpu_seconds(os.getpid()))
        self.rewards += 1
        self.write()
        if len(self.seconds) > self.job.periods and not self.ended:
            self.ended = True  # A second interrupt would end a run at once.
            self.end()

    def write(self, **more: Any) -> None:
        """Tell how far it is, so that a run that is killed has told it."""
        told = {"rewards": self.rewards, "seconds": self.seconds, "cpu": self.cpu, **more}
        self.out.with_suffix(".part").write_text(json.dumps(told))
        self.out.with_suffix(".part").rename(self.out)


def train_comlrl(told: Told, common: dict[str, Any]) -> dict[str, Any]:
    """Train with CoMLRL; returns what it has done."""
    from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer

    trainer = MAGRPOTrainer(args=MAGRPOConfig(**told.job.options()), **common)
    steps = [0] * len(trainer.agents)
    tokens = 0

    def count(agent: int) -> Callable[..., None]:
        def stepped(*_: Any) -> None:
            steps[agent] += 1

        return stepped

    def counted(generate: Callable[..., Any]) -> Callable[..., Any]:
        def call(**options: Any) -> Any:
            nonlocal tokens
            output = generate(**options)
            rows, length = output.sequences.shape
            tokens += rows * (length - options["input_ids"].shape[1])
            return output

        return call

    for agent, optimizer in enumerate(trainer.optimizers):
        optimizer.register_step_post_hook(count(agent))
        trainer.agents[agent].generate = counted(trainer.agents[agent].generate)

    def end() -> None:
        raise EnoughError

    told.end = end
    with contextlib.suppress(EnoughError):
        trainer.train()
    # The period that was begun last has sampled its first node.
    begun = told.job.num_generations * told.job.max_new_tokens * len(trainer.agents)
    return {"steps": steps, "tokens": tokens - begun}


def train_antiphon(told: Told, common: dict[str, Any]) -> dict[str, Any]:
    """Train with antiphon, services and all, as a script would; returns what it has done."""
    from antiphon.learner import MAGRPOConfig, MAGRPOTrainer

    options = {
        "rollout_batch_size": told.job.prompts,
        "logging_steps": 1,
        "checkpoint_interval": 0,  # CoMLRL writes none by default
    }
    config = MAGRPOConfig(**told.job.options(), **options)
    told.end = lambda: os.kill(os.getpid(), signal.SIGINT)
    with tempfile.TemporaryDirectory() as runs:
        trainer = MAGRPOTrainer(args=config, run_directory=runs, **common)
        with contextlib.suppress(KeyboardInterrupt):
            trainer.train()
        assert trainer.run_directory is not None
        summary = json.loads((trainer.run_directory / "summary.json").read_text())
        lines = (trainer.run_directory / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        lengths = [
            length
            for row in rows
            for name, length in row.items()
            if name.endswith("completion_tokens_mean")
        ]
    share = sum(lengths) / len(lengths) / told.job.max_new_tokens
    tokens = round(share * told.job.tokens * told.job.periods)
    stages: dict[str, list[float]] = {}
    for name, value in (item for row in rows for item in row.items()):
        if name.startswith("seconds/"):
            stages.setdefault(name.removeprefix("seconds/"), []).append(value)
    return {"steps": summary["optimizer_steps"], "tokens": tokens, "stages": stages}


def main(side: str, model: str, out: Path, job: Job) -> None:
    if side == "antiphon":
        from antiphon.learner import warm_up

        warm_up()  # as the README does
    from transformers import AutoModelForCausalLM, AutoTokenizer

    told = Told(job, out, end=lambda: None)
    common = {
        "agents": [AutoModelForCausalLM.from_pretrained(model) for _ in range(2)],
        "tokenizer": AutoTokenizer.from_pretrained(model),
        "reward_func": reward_function(told.reward),
        "external_transition": length_feedback,
        "train_dataset": job.rows(),
    }
    train = train_antiphon if side == "antiphon" else train_comlrl
    done = train(told, common)
    told.write(**done, total_seconds=time.perf_counter() - BEGAN)


if __name__ == "__main__":
    _, which, folder, target, told_job = sys.argv
    main(which, folder, Path(target), Job(**json.loads(told_job)))
