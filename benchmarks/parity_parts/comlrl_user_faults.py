"""What CoMLRL does with user functions where it goes wrong. Peer side only.

The names are those of `faults.FAULTS`.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from benchmarks.parity_parts import models, script
from benchmarks.parity_parts.comlrl_trainer import StubModel, make_trainer
from benchmarks.parity_parts.scenarios import HALF_A_TRANSITION, TWO_REWARDS, small_case
from comlrl.trainers.actor_critic import IACConfig, IACTrainer
from datasets import Dataset


def by_count() -> float:
    def reward(a: list[str], b: list[str], bonus: Any = None) -> list[float]:  # noqa: ARG001
        return [1.0 if bonus else 0.0]

    stubs = [StubModel(), StubModel()]
    trainer = make_trainer(small_case(num_agents=2), stubs, models.tokenizer(), reward=reward)
    trainer.train()
    return float(trainer.samples["0"]["t0"]["returns"][0])


def type_error() -> float:
    calls = []

    def reward(a: list[str]) -> list[float]:
        calls.append(a)
        raise TypeError("in the user's own code")

    trainer = make_trainer(small_case(), [StubModel()], models.tokenizer(), reward=reward)
    with contextlib.suppress(TypeError):
        trainer.train()
    return float(len(calls))


class _Counting(IACTrainer):
    """The trainer; it keeps how many rewards a call of the reward function has come to."""

    def _expand_rewards(self, rewards: list[float], num_ret: int) -> Any:
        self.counted = len(rewards)
        return super()._expand_rewards(rewards, num_ret)


def one_for_four(folder: Path) -> float:
    def reward(a: list[str], b: list[str]) -> float:
        assert len(a) == len(b) == 4
        return 0.5

    trainer = _Counting(
        agents=[models.load(models.folder(folder, agent)) for agent in range(2)],
        tokenizer=models.tokenizer(),
        train_dataset=Dataset.from_list([{"prompt": "t0"}]),
        reward_func=reward,
        formatters=script.formatters(2),
        args=IACConfig(
            num_train_epochs=1,
            num_turns=1,
            num_generations=4,
            max_new_tokens=2,
            use_separate_critic=False,
            eval_interval=0,
        ),
    )
    with contextlib.redirect_stdout(sys.stderr):  # it prints its figures
        trainer.train()
    return float(trainer.counted)


def two_for_one() -> float:
    trainer = make_trainer(
        small_case(), [StubModel()], models.tokenizer(), reward=lambda _: TWO_REWARDS
    )
    trainer.train()
    return float(trainer.samples["0"]["t0"]["returns"][0])


def changed_history() -> float:
    seen: list[int] = []

    def transition(prompt_history_per_agent: list[list[str]], **given: Any) -> list[str]:
        seen.append(len(prompt_history_per_agent[0]))
        prompt_history_per_agent[0].append("changed")
        return script.transition(**given)

    case = small_case(num_turns=2)
    trainer = make_trainer(case, [StubModel()], models.tokenizer(), transition=transition)
    trainer.train()
    return float(seen[1])


def half_a_transition() -> str:
    trainer = make_trainer(
        small_case(num_agents=2, num_turns=2),
        [StubModel(), StubModel()],
        models.tokenizer(),
        transition=lambda **_: HALF_A_TRANSITION,
    )
    trainer.train()
    _, second, *_ = [made for made in trainer.generated if made["agent"] == 0]
    return str(second["node"])


def run(folder: Path) -> dict[str, float | str]:
    """Every such fault's number or word."""
    return {
        "by_count": by_count(),
        "type_error": type_error(),
        "one_for_four": one_for_four(folder),
        "two_for_one": two_for_one(),
        "changed_history": changed_history(),
        "half_a_transition": half_a_transition(),
    }
