"""A run of tiny models as a script, which kills itself where it is told to.

python -m tests.e2e.resumable_run FOLDER [--resume] [--end KILL|TERM|ERROR PLACE:N]
    [--addresses ADDRESS ADDRESS] [--staleness S]

It trains in FOLDER/runs and saves the agents in FOLDER/trained. When it comes to PLACE the N-th
time, counted from 1 within this process, it sends itself SIGKILL or SIGTERM, or raises an error.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.tiny_task import reward as weigh
from tests.e2e.tiny_task import transition as write_prompts
from tests.support.models import tiny_model, tiny_tokenizer

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
    wire_dtype="float32",
    logging_steps=1,
    checkpoint_every_prompts=1,
    seed=11,
)

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


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--resume", action="store_true")
    arguments.add_argument("--end", nargs=2, default=["KILL", "nowhere:1"])
    arguments.add_argument("--addresses", nargs=2)
    arguments.add_argument("--staleness", type=int, default=0)
    given = arguments.parse_args()
    how, at = given.end
    place, _, number = at.rpartition(":")
    killer = Killer(how, place, int(number))
    watch_places(killer)

    def reward(*completions: list[str]) -> list[float]:
        killer.visit("reward")
        return [weigh(texts) for texts in zip(*completions, strict=True)]

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
        train_dataset=[{"prompt": prompt} for prompt in PROMPTS],
        args=CONFIG.replace(
            max_staleness=given.staleness, **(WITHOUT_PERIOD if NO_PERIOD in os.environ else {})
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
