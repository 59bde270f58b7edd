"""Runs CoMLRL on the grid and on the faults: python -m ... FOLDER. Peer side only.

Reads the models and `scenario.json` in the folder; writes `comlrl.json` and `comlrl.safetensors`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from benchmarks.parity_parts import cases, comlrl_evaluation, comlrl_faults, models, script
from benchmarks.parity_parts.cases import Case
from benchmarks.parity_parts.comlrl_trainer import Recorder, StubModel, logged, make_trainer
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]


def _outcome(trainer: Recorder) -> dict[str, Any]:
    """What a run came to."""
    return {
        "joint_actions": trainer.env_step,
        "rewards": trainer.rewards,
        "samples": trainer.samples,
        "steps": trainer.steps,
        "losses": trainer.losses,
    }


def _keep(name: str, trainer: Recorder, tensors: Tensors) -> None:
    """Gradients of each agent's steps, numbered from 0, weights before them and at the end."""
    steps = [0] * len(trainer.agents)
    for (agent, gradients), weights in zip(trainer.gradients, trainer.weights, strict=True):
        for what, found in (("gradient", gradients), ("before", weights)):
            for parameter, value in found.items():
                tensors[f"{name}/{what}/{agent}/{steps[agent]}/{parameter}"] = value
        steps[agent] += 1
    for agent, model in enumerate(trainer.agents):
        for parameter, value in model.named_parameters():
            tensors[f"{name}/weights/{agent}/{parameter}"] = value.detach().clone()


def _loaded(folder: Path, number: int) -> list[Any]:
    return [models.load(models.folder(folder, agent)) for agent in range(number)]


def _stubs(case: Case) -> list[StubModel]:
    return [StubModel() for _ in range(case.num_agents)]


def grid(tokenizer: Any) -> dict[str, Any]:
    told = {}
    for case in cases.grid():
        trainer = make_trainer(case, _stubs(case), tokenizer)
        trainer.train()
        told[case.name] = _outcome(trainer)
    return told


def training(folder: Path, tokenizer: Any, tensors: Tensors) -> dict[str, Any]:
    told = {}
    for case in cases.training():
        trainer = make_trainer(case, _loaded(folder, case.num_agents), tokenizer)
        trainer.train()
        told[case.name] = _outcome(trainer)
        _keep(case.name, trainer, tensors)
    half_dead = make_trainer(
        cases.half_dead(), _loaded(folder, 1), tokenizer, reward=script.flat_reward
    )
    half_dead.train()
    _keep("half dead", half_dead, tensors)
    return told


def reference_kl(folder: Path, tokenizer: Any) -> dict[str, Any]:
    told = {}
    for case in cases.reference_kl():
        trainer = make_trainer(case, _loaded(folder, case.num_agents), tokenizer, track=True)
        for model in trainer.agents:
            models.move(model)
        rows = logged(trainer.train)
        told[case.name] = {
            **_outcome(trainer),
            "log": rows,
            "reference_kls": [
                [made["agent"], made["node"], made["reference_kls"]] for made in trainer.generated
            ],
        }
    return told


def metrics(tokenizer: Any) -> dict[str, Any]:
    told = {}
    for case in cases.metrics():
        trainer = make_trainer(case, _stubs(case), tokenizer, track=True)
        told[case.name] = {"log": logged(trainer.train)}
    return told


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    tokenizer = models.tokenizer()
    tensors: Tensors = {}
    scenario = json.loads((folder / "scenario.json").read_text())
    told = {
        "grid": grid(tokenizer),
        "training": training(folder, tokenizer, tensors),
        "reference_kl": reference_kl(folder, tokenizer),
        "metrics": metrics(tokenizer),
        "evaluations": comlrl_evaluation.evaluations(),
        "faults": comlrl_faults.run(folder, scenario),
    }
    (folder / "comlrl.json").write_text(json.dumps(told))
    save_file(tensors, folder / "comlrl.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
