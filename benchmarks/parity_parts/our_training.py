"""Ours with models, held against what CoMLRL's side wrote down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.parity_parts import cases, models, our_run, script
from benchmarks.parity_parts.cases import Case
from benchmarks.parity_parts.relations import Told, largest
from benchmarks.results import require

from antiphon.learner.policy.policy import Policy

Tensors = Mapping[str, torch.Tensor]
Found = Iterator[tuple[str, float]]


def _policies(folder: Path, case: Case) -> list[Policy]:
    return [
        our_run.policy(agent, models.load(models.folder(folder, agent)), case)
        for agent in range(case.num_agents)
    ]


def _relative(theirs: torch.Tensor, ours: torch.Tensor) -> float:
    return float((theirs - ours).norm()) / float(theirs.norm())


def _steps(tensors: Tensors, prefix: str) -> dict[str, torch.Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _gradient_gap(theirs: Tensors, ours: Tensors, factor: float = 1.0) -> float:
    """Norm of the difference of whole gradients, relative to CoMLRL's."""
    names = sorted(ours)
    return _relative(
        torch.cat([theirs[n].flatten() for n in names]) * factor,
        torch.cat([ours[n].flatten() for n in names]),
    )


def training(folder: Path, told: Told, tensors: Tensors) -> Found:
    """Loss, gradient, weights of every training case."""
    for case in cases.training():
        policies = _policies(folder, case)
        ran = our_run.run(case, policies=policies)
        losses = told[case.name]["losses"]
        for agent, watched in enumerate(ran.watched):
            if any(sample.dead for batch in watched.minibatches for sample in batch):
                raise ValueError(f"{case.name}: a dead group; choose other tasks")
            theirs = [loss for whose, loss in losses if whose == agent]
            model = models.load(models.folder(folder, agent))
            for number, (loss, stats) in enumerate(zip(theirs, watched.stats, strict=True)):
                yield "loss", abs(loss - stats.loss) / watched.sizes[number]
                found = _steps(tensors, f"{case.name}/gradient/{agent}/{number}/")
                model.load_state_dict(_steps(tensors, f"{case.name}/before/{agent}/{number}/"))
                batch = watched.minibatches[number]
                _, gradient = our_run.gradient(model, batch, ratio=number == 0)
                yield "gradient", _gradient_gap(found, gradient)
            weights = _steps(tensors, f"{case.name}/weights/{agent}/")
            for name, parameter in policies[agent].model.named_parameters():
                yield "weights", float((weights[name] - parameter.detach()).abs().max())


def half_dead(folder: Path, tensors: Tensors) -> Found:
    """A minibatch of which one node of two is dead."""
    case = cases.half_dead()
    ran = our_run.run(case, policies=_policies(folder, case), reward=script.flat_reward)
    ((minibatch,), (gradient,)) = ran.watched[0].minibatches, ran.watched[0].gradients
    live = sum(not sample.dead for sample in minibatch)
    require(0 < live < len(minibatch), f"{live} of {len(minibatch)} nodes are live")
    theirs = _steps(tensors, "half dead/gradient/0/0/")
    yield "dead_nodes", _gradient_gap(theirs, gradient, len(minibatch) / live)


def reference_kl(folder: Path, told: Told) -> Found:
    """Reference KL, returns less it, and its metrics."""
    for case in cases.reference_kl():
        theirs = told[case.name]
        policies = _policies(folder, case)
        references = our_run.reference(folder, case, policies)
        for policy in policies:
            models.move(policy.model)
        ran = our_run.run(case, policies=policies, references=references, track=True)
        kls = {(agent, node): values for agent, node, values in theirs["reference_kls"]}
        labels = ran.labels
        for root in ran.roots:
            for node in root.walk():
                for agent, terms in enumerate(node.references):
                    expected = kls[agent, labels[root.row, node.path]]
                    pairs = zip(expected, terms, strict=True)
                    yield "reference_kl", largest([(a - t.kl) / max(1, a) for a, t in pairs])
        yield from _kl_returns(case, theirs, ran.told(), kls)
        yield from _metrics(theirs["log"], ran.rows)


def _kl_returns(case: Case, theirs: Told, ours: Told, kls: Mapping[Any, list[float]]) -> Found:
    k = case.joint_actions_per_completion
    for agent, nodes in ours["samples"].items():
        for name, node in nodes.items():
            effective = theirs["samples"][agent][name]["effective_returns"]
            terms = zip(effective, node["returns"], kls[int(agent), name], strict=True)
            gaps = [
                (return_ - k * our - (k - 1) * case.reference_kl * kl) / k
                for return_, our, kl in terms
            ]
            yield "kl_returns" if k == 1 else "cross_kl_returns", largest(gaps)


def metrics(told: Told) -> Found:
    """The metrics that both tell of one epoch."""
    for case in cases.metrics():
        yield from _metrics(told[case.name]["log"], our_run.run(case, track=True).rows)


def _metrics(log: list[Any], rows: list[dict[str, Any]]) -> Found:
    """CoMLRL writes each agent's figures under one name; ours are means over all agents."""
    (row,) = rows
    by_name: dict[str, list[float]] = {}
    for _, figures in log:
        for name, value in figures.items():
            by_name.setdefault(name, []).append(value)
    yield "metric_names", float(len(set(by_name) - set(row)))
    for name, values in by_name.items():
        if name in row:
            yield "metrics", abs(sum(values) / len(values) - row[name])
