"""A run of tiny models as a script, which kills itself where it is told to.

python -m tests.e2e.resumable_run FOLDER [--resume] [--end KILL|TERM|ERROR PLACE:N]
    [--addresses ADDRESS ADDRESS] [--staleness S] [--draws]

It trains in FOLDER/runs and saves the agents in FOLDER/trained. When it comes to PLACE the N-th
time, counted from 1 within this process, it sends itself SIGKILL or SIGTERM, or raises an error.
With --draws the user's functions draw from the process's generators, in trees of one turn that are
grown one at a time, so that the draws come in a fixed order.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.e2e.tiny_task import reward as weigh
from tests.e2e.tiny_task import transition as write_prompts
from tests.support.models import WORDS, tiny_model, tiny_tokenizer

from antiphon.clients.generation import GenerationClient
from antiphon.learner import MAGRPOConfig, MAGRPOTrainer
from antiphon.learner.checkpoints.store import CheckpointStore
from antiphon.learner.policy.policy import Policy
from antiphon.learner.record.run_folder import RunFolder
from antiphon.learner.record.trackers.jsonl import JsonlTracker

PROMPTS = ["a red cat", "two dog b", "green c sings", "one blue d", "three cat e"]
CONFIG = MAGRPOConfig(
    num_train_epochs=2,
    num_turns=2,
    num_generations=2,
    max_new_tokens=5,
    agent_learning_rate=1e-2,
    temperature=1.0,
    top_p=0.9,
    top_k=20,
    early_termination_threshold=None,
    # A tree has three nodes: every other buffer drains in the middle of one.
    rollout_buffer_size=4,
    train_batch_size=3,
    rollout_batch_size=2,
    # A drain has a minibatch of each turn: one step from both.
    gradient_accumulation_steps=2,
    lr_scheduler_type="linear",
    shuffle=True,
    # At the start, in the middle of the second epoch and at the end.
    eval_interval=6,
    eval_num_samples=1,
    best_metric="eval/turn_2/reward_mean",
    wire_dtype="float32",
    logging_steps=1,
    checkpoint_every_prompts=1,
    seed=11,
)

EVALUATED = "two blue cat"
DRAWING = {
    "num_turns": 1,
    "rollout_batch_size": 1,
    "best_metric": "eval/turn_1/reward_mean",
}
WITHOUT_PERIOD = {"checkpoint_interval": 0, "checkpoint_every_prompts": None}
NO_PERIOD = "TESTS_NO_PERIODIC_CHECKPOINTS"
"""Environment variable that turns periodic checkpoints off."""


class Killer:
    """Counts visits to one place and ends the process at the N-th."""

    def __init__(self, how: str, place: str, number: int) -> None:
        self._how, self._place, self._left = how, place, number

    def visit(self, place: str) -> None:
        if place == self._place:
            self._left -= 1
            if self._left == 0:
                self._end()

    def _end(self) -> None:
        if self._how == "ERROR":
            raise ValueError(f"the error at {self._place}")
        os.kill(os.getpid(), signal.Signals[f"SIG{self._how}"])


def before(owner: Any, name: str, act: Callable[..., None]) -> None:
    """Have `act` called with a method's arguments before the method is."""
    method = getattr(owner, name)

    def acting(*args: Any, **how: Any) -> Any:
        act(*args, **how)
        return method(*args, **how)

    setattr(owner, name, acting)


def watch_places(killer: Killer) -> None:
    """Have the killer visit the places in the inside of a run."""
    before(Policy, "step", lambda *_, **__: killer.visit("update"))

    take = RunFolder.next_incarnation

    def took(folder: RunFolder, found: int) -> int:
        number = take(folder, found)
        killer.visit("incarnation stored")
        return number

    RunFolder.next_incarnation = took  # type: ignore[method-assign]

    push = GenerationClient.push_weights

    async def pushed(client: Any, header: Any, read_tensor: Any, *, timeout: float) -> Any:
        def read(index: int) -> memoryview:
            if index == len(header.tensors) // 2:
                killer.visit("push")
            return read_tensor(index)

        return await push(client, header, read, timeout=timeout)

    GenerationClient.push_weights = pushed  # type: ignore[method-assign]

    def half_a_row(tracker: Any, row: Any) -> None:
        with tracker._path.open("a") as file:
            size = file.tell()
            file.write('{"joint_actions": ')
            file.flush()
            killer.visit("record")
            file.truncate(size)

    before(JsonlTracker, "log", half_a_row)

    make = CheckpointStore.__init__

    def made(store: CheckpointStore, directory: Path) -> None:
        make(store, directory, lambda step: killer.visit(f"checkpoint {step}"))

    CheckpointStore.__init__ = made  # type: ignore[method-assign, assignment]


def drawn_number() -> float:
    """One draw from each generator, that of normal numbers too, which keeps every second one."""
    of_python, of_numpy = random.random() + random.gauss(), np.random.random() + np.random.normal()
    return of_python + float(of_numpy) + float(torch.rand(()))


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--resume", action="store_true")
    arguments.add_argument("--end", nargs=2, default=["KILL", "nowhere:1"])
    arguments.add_argument("--addresses", nargs=2)
    arguments.add_argument("--staleness", type=int, default=0)
    arguments.add_argument("--draws", action="store_true")
    given = arguments.parse_args()
    how, at = given.end
    place, _, number = at.rpartition(":")
    killer = Killer(how, place, int(number))
    watch_places(killer)
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)

    def reward(*completions: list[str], phases: list[str]) -> list[float]:
        drawn = drawn_number() if given.draws else 0.0
        killer.visit("reward" if phases[0] == "train" else "evaluation")
        return [drawn + weigh(texts) for texts in zip(*completions, strict=True)]

    def prompt_of(item: dict[str, str]) -> str:
        return f"{random.choice(WORDS)} {item['prompt']}"

    def transition(
        prompt: str,
        agent_completions: list[str],
        num_agents: int,
        prompt_history_per_agent: list[list[str]],
        response_history_per_agent: list[list[str]],
    ) -> list[str]:
        killer.visit("transition")
        return write_prompts(
            prompt,
            agent_completions,
            num_agents,
            prompt_history_per_agent,
            response_history_per_agent,
        )

    tokenizer = tiny_tokenizer(given.folder / "tokenizer")
    trainer = MAGRPOTrainer(
        agents=[tiny_model(tokenizer, seed) for seed in range(2)],
        tokenizer=tokenizer,
        reward_func=reward,
        external_transition=transition,
        formatters=prompt_of if given.draws else None,
        train_dataset=[{"prompt": prompt} for prompt in PROMPTS],
        eval_dataset=[{"prompt": EVALUATED}],
        args=CONFIG.replace(
            max_staleness=given.staleness,
            **(WITHOUT_PERIOD if NO_PERIOD in os.environ else {}),
            **(DRAWING if given.draws else {}),
        ),
        run_directory=given.folder / "runs",
        run_name="run",
        generation_addresses=given.addresses,
        threads=2,
    )
    trainer.train(resume_from_checkpoint=given.resume)
    before(type(trainer.agents[1]), "save_pretrained", lambda *_, **__: killer.visit("save"))
    trainer.save_model(given.folder / "trained")


if __name__ == "__main__":
    main()
