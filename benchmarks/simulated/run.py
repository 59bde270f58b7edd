"""Runs of the product against simulated services, with an update that sleeps; what a step took."""

from __future__ import annotations

import contextlib
import json
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from benchmarks.simulated.serve import Services, served
from tests.support.models import tiny_folder, tiny_model, tiny_tokenizer
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from antiphon.learner import MAGRPOConfig, MAGRPOTrainer
from antiphon.learner.policy.policy import Policy, StepStats

WARM = 2
"""Batches at the beginning, and at the end, that are not measured."""
CONTEXT = 8192
PER_PROCESS = 16
"""Replicas of one simulated process."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is trained.

    Attributes:
        batches: Rollout batches that are measured.
        tasks: Tasks of a rollout batch.
        turns: Of a tree; no node ends early.
        generations: Completions per prompt.
        tokens: `max_new_tokens`.
        agents: How many.
        replicas: Generation services of each agent.
        staleness: `max_staleness`.
        update_seconds: What the update of a rollout batch takes.
        services: What all services are like.
    """

    batches: int
    tasks: int = 1
    turns: int = 1
    generations: int = 4
    tokens: int = 50
    agents: int = 1
    replicas: int = 1
    staleness: int = 0
    update_seconds: float = 0.0
    services: Services = field(default_factory=Services)

    @property
    def nodes(self) -> int:
        """Nodes of a rollout batch."""
        return self.tasks * sum(self.generations**turn for turn in range(self.turns))

    @property
    def turn_seconds(self) -> float:
        """What the engine takes for a batch of completions that fits it."""
        return self.tokens * self.services.token_seconds


@dataclass(frozen=True)
class Steps:
    """What was measured, over rollout batches in the middle of a run.

    Attributes:
        seconds: From one batch's end to the next's, each.
        staleness: The most publishes that lay between sampling and training.
        joint_actions: In all of the run.
        push_seconds: Of each publish of agent 0.
        update_seconds: Of the update of each batch.
    """

    seconds: tuple[float, ...]
    staleness: int
    joint_actions: int
    push_seconds: tuple[float, ...] = ()
    update_seconds: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """Seconds per rollout batch over the whole time, also where steps come in bursts.

        Batches that are under way side by side may end soon after one another.
        """
        return statistics.mean(self.seconds)

    @property
    def median(self) -> float:
        """Seconds of a step where batches follow each other."""
        return statistics.median(self.seconds)


def _model(tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    return tiny_model(tokenizer, seed, context=CONTEXT)


def measured(*jobs: Job) -> list[Steps]:
    """Train each of these, and measure. All have the services of the first.

    Raises:
        RuntimeError: A run did other work than was asked for.
    """
    first = jobs[0]
    shared = (first.agents, first.replicas, first.services)
    if any((job.agents, job.replicas, job.services) != shared for job in jobs):
        raise RuntimeError("jobs that are measured together have the same services")
    logging.getLogger("antiphon").setLevel(logging.ERROR)
    with TemporaryDirectory(prefix="antiphon-") as temporary:
        folder = Path(temporary)
        model = tiny_folder(folder / "model", context=CONTEXT)
        sockets = [
            [str(folder / f"{agent}-{replica}.sock") for replica in range(first.replicas)]
            for agent in range(first.agents)
        ]
        addresses = [[f"unix:{socket}" for socket in of_agent] for of_agent in sockets]
        reward = str(folder / "reward.sock")
        with served(model, *_processes(first, sockets, reward)):
            return [
                trained(job, folder, f"run-{number}", addresses, f"unix:{reward}")
                for number, job in enumerate(jobs)
            ]


def _processes(
    job: Job, sockets: Sequence[Sequence[str]], reward_socket: str
) -> Iterator[Services]:
    every = [socket for of_agent in sockets for socket in of_agent]
    slow = every[-1] if job.services.slow_factor > 1 else ""
    about = job.services.__dict__ | {"slow_socket": slow}
    for start in range(0, len(every), PER_PROCESS):
        yield Services(**about | {"sockets": tuple(every[start : start + PER_PROCESS])})
    yield Services(**about | {"sockets": (), "reward_socket": reward_socket})


def trained(
    job: Job,
    folder: Path,
    name: str,
    addresses: Sequence[Sequence[str]],
    reward: str,
    *,
    model: Callable[[PreTrainedTokenizerFast, int], PreTrainedModel] = _model,
    around: AbstractContextManager[None] | None = None,
    **options: Any,
) -> Steps:
    """One run of the product against services that are there already.

    Args:
        job: What is trained.
        folder: Where the run's folder goes, below `runs`.
        name: Of the run.
        addresses: Of each agent's generation services.
        reward: Address of the reward service.
        model: Makes an agent's model of tokenizer and number; that which the services have.
        around: What the run happens in; by itself, an update that sleeps.
        options: More settings of the run.
    """
    tokenizer = tiny_tokenizer(folder / "tokenizer")
    batches = job.batches + 2 * WARM + 1
    trainer = MAGRPOTrainer(
        agents=[model(tokenizer, seed) for seed in range(job.agents)],
        tokenizer=tokenizer,
        reward_address=reward,
        external_transition=_next_prompts if job.turns > 1 else None,
        train_dataset=[
            {"prompt": f"one two {'red ' * (n % 3)}"} for n in range(batches * job.tasks)
        ],
        args=MAGRPOConfig(
            num_train_epochs=1,
            num_turns=job.turns,
            num_generations=job.generations,
            max_new_tokens=job.tokens,
            early_termination_threshold=None,
            rollout_batch_size=job.tasks,
            rollout_buffer_size=job.nodes,
            train_batch_size=1,
            max_staleness=job.staleness,
            logging_steps=1,
            keep_rollouts_every=0,
            checkpoint_interval=0,
            eval_interval=0,
            **options,
        ),
        run_directory=folder / "runs",
        run_name=name,
        generation_addresses=[list(of_agent) for of_agent in addresses],
        wandb_config={"verbose": False},
        threads=job.agents,
    )
    with updates_that_sleep(job) if around is None else around:
        trainer.train()
    return _steps(job, folder / "runs" / name / "metrics.jsonl")


def _next_prompts(prompt: str, num_agents: int) -> list[str]:
    return [f"{prompt} again"] * num_agents


@contextlib.contextmanager
def updates_that_sleep(
    job: Job, on_step: Callable[[], None] = lambda: None, *, stepped: bool = True
) -> Iterator[None]:
    """Steps of known length; the weights stay as they are and are published, where `stepped`."""
    # Policies as small as these are updated in turn.
    per_node = job.update_seconds / (job.nodes * job.agents)

    def step(_policy: Any, *minibatches: Sequence[Any]) -> StepStats:
        nodes = sum(len(minibatch) for minibatch in minibatches)
        on_step()
        if per_node:
            time.sleep(per_node * nodes)
        return StepStats(stepped=stepped, live_nodes=nodes, dead_nodes=0, tokens=1)

    with mock.patch.object(Policy, "step", step):
        yield


def _steps(job: Job, metrics: Path) -> Steps:
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    rows = [row for row in rows if "agent_0/staleness_max" in row]
    joint_actions = sum(job.generations ** (turn + 1) for turn in range(job.turns)) * job.tasks
    wanted = [joint_actions * (number + 1) for number in range(len(rows))]
    if [row["joint_actions"] for row in rows] != wanted:
        raise RuntimeError(f"{metrics}: other joint actions than {wanted[:3]}, ...")
    times = [row["time"] for row in rows][WARM:-WARM]
    staleness = max(row[f"agent_{a}/staleness_max"] for row in rows for a in range(job.agents))
    return Steps(
        tuple(later - earlier for earlier, later in pairwise(times)),
        int(staleness),
        rows[-1]["joint_actions"],
        tuple(row.get("agent_0/push_seconds", 0.0) for row in rows[WARM:-WARM]),
        tuple(row["seconds/update"] for row in rows[WARM:-WARM]),
    )
