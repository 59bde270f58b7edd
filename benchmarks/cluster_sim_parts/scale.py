"""The model run to a thousand replicas and seventy billion parameters.

Work grows with the replicas: a task for each, in two turns. The learner's GPUs grow with those of
the engines. What the processes cost (`Measured`) was measured here, what GPUs cost is calculated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from benchmarks.cluster_sim_parts import hardware
from benchmarks.cluster_sim_parts.cluster import Found, simulate
from benchmarks.cluster_sim_parts.costs import Costs, Fanout, ProcessCosts, PushCosts, Work
from benchmarks.cluster_sim_parts.hardware import Model, assumed

AGENTS = 2
COUNTS = (1, 4, 16, 64, 500)
"""Replicas of each agent."""
LEARNER_SHARE = 0.25
"""GPUs of a policy for each GPU of its engines: then update and sampling take about as long."""
OPTIMIZER_STEPS = 4
JOB = Work(
    turns=2,
    generations=8,
    tokens=1024,
    shortest=0.1,
    prompt_tokens=512,
    turn_tokens=512,
    agents=AGENTS,
)
"""A reference: completions of 102 to 1,024 tokens, prompts of 512 and 1,024."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What this machine measured of processes and pushes.

    Attributes:
        learner: Processor seconds of the learner's event loop.
        service: Of a generation service, beside its engine.
        push_rate: Bytes/s of a push from one process to others.
        encode_rate: Bytes/s of the weights that one process compares and encodes.
        changed: Bytes of a delta over all bytes, after a prompt's steps at learning rate 1e-6.
    """

    learner: ProcessCosts
    service: ProcessCosts
    push_rate: float
    encode_rate: float
    changed: float


@dataclass(frozen=True, kw_only=True)
class Design:
    """How weights are published, and how far sampling runs ahead."""

    name: str
    deltas: bool = True
    fanout: Fanout = "store"
    staleness: int = 0


DESIGNS = (
    Design(name="all tensors, each replica", deltas=False, fanout="each"),
    Design(name="changes, each replica", fanout="each"),
    Design(name="changes, stored once", fanout="store"),
    Design(name="changes, stored once, staleness 1", fanout="store", staleness=1),
)


def learner_gpus(model: Model, replicas: int) -> int:
    """GPUs of one agent's policy: a power of two, in proportion to the engines', as many as fit."""
    gpus = model.learner_gpus
    while gpus < LEARNER_SHARE * replicas * model.engine_gpus:
        gpus *= 2
    return gpus


def costs(model: Model, design: Design, measured: Measured, gpus: int) -> Costs:
    """All constants of a cluster of this model whose policies have `gpus` GPUs each."""
    context = JOB.prompt_tokens + JOB.turn_tokens + JOB.tokens
    nbytes = model.weight_bytes * (measured.changed if design.deltas else 1.0)
    rate = min(measured.push_rate, assumed("network of a GPU, one way"))
    push = PushCosts(
        nbytes=nbytes,
        encode_seconds=model.weight_bytes / (measured.encode_rate * gpus),
        link=rate,
        replica_link=rate,
        apply_seconds=nbytes / (assumed("weights into an engine's GPU") * model.engine_gpus),
        fanout=design.fanout,
        hop_seconds=assumed("from one replica to the next"),
        store_link=assumed("storage, all readers together"),
    )
    return Costs(
        engine=hardware.engine(model, context),
        learner=measured.learner,
        service=measured.service,
        push=push,
        score_seconds=1.0,
        on_swap="continue" if design.staleness else "finish",
    )


def placed(model: Model, work: Work, gpus: int, placement: Literal["shared", "per-agent"]) -> Work:
    """The work with its update's seconds; `gpus` are those of all policies together."""
    if placement == "shared":
        each = hardware.update_seconds(model, work, gpus, OPTIMIZER_STEPS)
        return replace(work, update_seconds=each, side_by_side=False)
    each = hardware.update_seconds(model, work, gpus // work.agents, OPTIMIZER_STEPS)
    return replace(work, update_seconds=each, side_by_side=True)


def weak(replicas: int, staleness: int) -> Work:
    """A task for each replica of an agent.

    Batches that are sampled at once may end together: a multiple of them is measured.
    """
    return replace(
        JOB,
        tasks=replicas,
        replicas=replicas,
        staleness=staleness,
        warm=2 * staleness,
        steps=(staleness + 1) * max(1, 4 // replicas),
    )


def point(name: str, replicas: int, design: Design, measured: Measured) -> dict[str, Any]:
    """One simulated run: what a step takes, and what bounds it.

    `of_ideal` is what it would take where nothing but sampling, scores and updates took time, over
    what it takes.
    """
    model = hardware.MODELS[name]
    gpus = learner_gpus(model, replicas)
    work = placed(model, weak(replicas, design.staleness), gpus * AGENTS, "per-agent")
    told = costs(model, design, measured, gpus)
    found = simulate(work, told)
    alone = simulate(
        replace(work, tasks=1, replicas=1),
        Costs(engine=told.engine, score_seconds=told.score_seconds, on_swap=told.on_swap),
    )
    return {
        "model": name,
        "design": design.name,
        "replicas": replicas * AGENTS,
        "engine_gpus": replicas * AGENTS * model.engine_gpus,
        "learner_gpus": gpus * AGENTS,
        "update_seconds": work.update_seconds,
        "of_ideal": alone.step / found.step,
        **figures(found),
    }


def figures(found: Found) -> dict[str, Any]:
    """What is told of a simulated run."""
    return {
        "step": found.step,
        "tokens_per_second": found.tokens / found.step,
        "engines_idle": found.idle,
        "learner_idle": 1 - found.learner,
        "loop": found.loop,
        "link": found.link,
        "push_seconds": found.push_seconds,
        "pushed_bytes": found.nbytes,
        "staleness": found.staleness,
        "mean_staleness": found.mean_staleness,
    }


def curves(measured: Measured) -> list[dict[str, Any]]:
    """Every model and design at every number of replicas."""
    rows = []
    for name, design, replicas in product(hardware.MODELS, DESIGNS, COUNTS):
        rows.append(point(name, replicas, design, measured))
        print(f"{name}, {design.name}, {2 * replicas} replicas: {rows[-1]['step']:.1f} s")
    return rows


CHANGED_AT = 64
"""Replicas of each agent at which single changes are looked at."""


def changes(measured: Measured) -> list[dict[str, Any]]:
    """What single changes do to 128 replicas of 7B."""
    model, design = hardware.MODELS["7B"], DESIGNS[2]
    gpus = learner_gpus(model, CHANGED_AT)
    work = placed(model, weak(CHANGED_AT, 0), gpus * AGENTS, "per-agent")
    work = replace(work, steps=2)
    base = costs(model, design, measured, gpus)
    ahead = replace(work, staleness=1, warm=3)
    cases = {
        "as above (changes stored once, staleness 0)": (work, base),
        "one replica of each agent 1.5 times slower": (replace(work, slow={0: 1.5}), base),
        "the same, in equal shares": (replace(work, slow={0: 1.5}, balance="shares"), base),
        "one replica of each agent 4 times slower": (replace(work, slow={0: 4.0}), base),
        "scores of 10 s": (work, replace(base, score_seconds=10.0)),
        "changes from replica to replica, in a tree": (
            work,
            replace(base, push=replace(base.push, fanout="tree")),
        ),
        "staleness 1": (ahead, replace(base, on_swap="continue")),
        "staleness 1, scores of 10 s": (
            ahead,
            replace(base, on_swap="continue", score_seconds=10.0),
        ),
        "staleness 2, scores of 10 s": (
            replace(ahead, staleness=2, steps=3),
            replace(base, on_swap="continue", score_seconds=10.0),
        ),
    }
    return [{"name": name, **figures(simulate(*case))} for name, case in cases.items()]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster that is recommended: GPUs of the learner, and replicas of each agent."""

    model: str
    size: str
    learner_gpus: int
    replicas: int
    tasks: int = 32


CLUSTERS = (
    Cluster(model="0.5B", size="smallest", learner_gpus=2, replicas=1),
    Cluster(model="0.5B", size="one node", learner_gpus=2, replicas=3),
    Cluster(model="7B", size="smallest", learner_gpus=8, replicas=4),
    Cluster(model="7B", size="eight nodes", learner_gpus=16, replicas=24),
    Cluster(model="70B", size="smallest", learner_gpus=64, replicas=4),
    Cluster(model="70B", size="thirty-two nodes", learner_gpus=128, replicas=16),
)


def advice(measured: Measured) -> list[dict[str, Any]]:
    """Each recommended cluster, with both placements, at staleness 0 and 1."""
    rows = []
    for cluster in CLUSTERS:
        model = hardware.MODELS[cluster.model]
        work = replace(JOB, tasks=cluster.tasks, replicas=cluster.replicas, steps=2)
        engines = AGENTS * cluster.replicas * model.engine_gpus
        row: dict[str, Any] = {
            "model": cluster.model,
            "name": model.name,
            "size": cluster.size,
            "learner_gpus": cluster.learner_gpus,
            "replicas": cluster.replicas,
            "gpus_per_replica": model.engine_gpus,
            "gpus": cluster.learner_gpus + engines,
        }
        for placement in ("shared", "per-agent"):
            made = placed(model, work, cluster.learner_gpus, placement)
            each = cluster.learner_gpus // (1 if placement == "shared" else AGENTS)
            for staleness, design in ((0, DESIGNS[2]), (1, DESIGNS[3])):
                found = simulate(
                    replace(made, staleness=staleness), costs(model, design, measured, each)
                )
                row[f"{placement}, staleness {staleness}"] = {
                    "update_seconds": made.update_seconds * (1 if made.side_by_side else AGENTS),
                    **figures(found),
                }
        rows.append(row)
    return rows
