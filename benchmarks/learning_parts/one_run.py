"""One arm with one seed.

    python -m benchmarks.learning_parts.one_run ARM SEED SNAPSHOT OUT SETTINGS CODE

Runs in either environment; imports the trainer of the arm's side only. CODE is written down with
the run (`sources.digest`, empty for CoMLRL). The clock starts when this process does, so imports
and the start of services count.
"""

from __future__ import annotations

import time

BEGAN = time.perf_counter()

import json  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from benchmarks.learning_parts import task  # noqa: E402
from benchmarks.processes import cpu_seconds  # noqa: E402


def train_comlrl(seed: int, options: dict[str, Any], common: dict[str, Any]) -> list[int]:
    """Train with CoMLRL; returns the optimiser steps of each agent."""
    import numpy
    import torch
    from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)
    trainer = MAGRPOTrainer(args=MAGRPOConfig(**options), **common)
    steps = [0] * len(trainer.optimizers)

    def count(agent: int) -> Any:
        def hook(*_: Any) -> None:
            steps[agent] += 1

        return hook

    for agent, optimizer in enumerate(trainer.optimizers):
        optimizer.register_step_post_hook(count(agent))
    trainer.train()
    return steps


def train_antiphon(seed: int, options: dict[str, Any], common: dict[str, Any]) -> list[int]:
    """Train with antiphon: services and all, as a script would; returns the optimiser steps."""
    from antiphon.learner import MAGRPOConfig, MAGRPOTrainer

    # Every run has as many samples: one that has converged goes on, too.
    options |= {"seed": seed, "reward_batch_size": task.REWARD_BATCH, "dead_groups_limit": None}
    config = MAGRPOConfig(**options)
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as runs:
        trainer = MAGRPOTrainer(args=config, run_directory=runs, threads=cores, **common)
        trainer.train()
        assert trainer.run_directory is not None
        summary = json.loads((trainer.run_directory / "summary.json").read_text())
    return list(summary["optimizer_steps"])


def main(
    arm_name: str, seed: int, snapshot: str, out: Path, settings: task.Settings, code: str | None
) -> None:
    arm = task.ARMS[arm_name]
    if arm.side == "antiphon":
        from antiphon.learner import warm_up

        warm_up()  # as the README does
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rewards: list[float] = []
    seconds: list[float] = []
    cpu: list[float] = []
    load: list[float] = []

    def told(reward: float) -> None:
        rewards.append(reward)
        if len(rewards) % settings.joint_actions_per_prompt == 0 or len(rewards) == 1:
            seconds.append(time.perf_counter() - BEGAN)
            cpu.append(cpu_seconds(os.getpid()))
            load.append(os.getloadavg()[0])

    common = {
        "agents": [AutoModelForCausalLM.from_pretrained(snapshot) for _ in task.ROLES],
        "tokenizer": AutoTokenizer.from_pretrained(snapshot),
        "reward_func": task.reward_function(told),
        "formatters": [task.formatter(role) for role in range(len(task.ROLES))],
        "external_transition": task.transition,
        "train_dataset": task.rows(settings),
    }
    options = settings.trainer_options(arm.sampling)
    if arm.side == "comlrl":
        steps = train_comlrl(seed, options, common)
    else:
        steps = train_antiphon(seed, {**options, "logprob_support": arm.logprob_support}, common)
    result = {
        "arm": arm_name,
        "seed": seed,
        "rewards": rewards,
        "seconds": seconds,
        "cpu": cpu,
        "load": load,
        "total_seconds": time.perf_counter() - BEGAN,
        "cpu_seconds": cpu_seconds(os.getpid()),
        "optimizer_steps": steps,
        "code": code,
    }
    partial = out.with_suffix(".part")
    partial.write_text(json.dumps(result))
    partial.rename(out)


if __name__ == "__main__":
    _, name, number, start, target, told_settings, told_code = sys.argv
    chosen = task.Settings(**json.loads(told_settings))
    main(name, int(number), start, Path(target), chosen, told_code or None)
