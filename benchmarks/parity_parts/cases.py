"""The grid that both sides run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from benchmarks.parity_parts.script import TASKS

MODES = ("mean", "rloo", "max", "raw")


@dataclass(frozen=True)
class Case:
    """One run of both. `threshold` is that of early termination, `reference_kl` a coefficient.

    `even` gives completions of one length, and CoMLRL one column of padding behind them: it leaves
    the last column of every row out of its loss, so what it trains ends where it should.
    """

    num_agents: int
    num_turns: int
    joint_mode: str
    num_generations: int
    threshold: float | None
    mode: str
    normalize: bool
    tasks: tuple[str, ...]
    rollout_buffer_size: int
    train_batch_size: int | None = None
    even: bool = False
    reference_kl: float = 0.0
    logging_steps: int = 1
    learning_rate: float = 1e-3

    @property
    def name(self) -> str:
        """Unique within the grid, and within the training cases."""
        ending = "off" if self.threshold is None else "on"
        return (
            f"{self.num_agents} agents, {self.num_turns} turns, {self.joint_mode}, "
            f"early termination {ending}, {self.mode}, normalised {self.normalize}"
            + (f", reference KL {self.reference_kl}" if self.reference_kl else "")
        )

    @property
    def joint_actions_per_completion(self) -> int:
        """In how many joint actions of its node a completion is: 1, or G^(N-1) in `cross`."""
        if self.joint_mode == "aligned":
            return 1
        return int(self.num_generations ** (self.num_agents - 1))


def grid() -> Iterator[Case]:
    """1 to 3 agents, 1 to 3 turns, aligned and cross, early termination, all advantages."""
    shapes = product((1, 2, 3), (1, 2, 3), ("aligned", "cross"), (None, 0.0))
    buffers = ((2, None), (3, None), (4, 1), (5, 2))
    for number, (num_agents, num_turns, joint_mode, threshold) in enumerate(shapes):
        # 4 or 2 completions: a mean over a power of two is not rounded either.
        generations = 4 if joint_mode == "aligned" else 2
        size, minibatch = buffers[number % len(buffers)]
        for mode, normalize in product(MODES, (False, True)):
            yield Case(
                num_agents=num_agents,
                num_turns=num_turns,
                joint_mode=joint_mode,
                num_generations=generations,
                threshold=threshold,
                mode=mode,
                normalize=normalize,
                tasks=("t0", "t1") if num_turns < 3 else ("t0",),
                rollout_buffer_size=size,
                train_batch_size=minibatch,
            )


def training() -> list[Case]:
    """Runs with models: loss, gradient, weights. The tasks are such that no group is dead."""
    return [
        _training(1, 3, "aligned", 2, "mean", True, buffer=4),
        _training(2, 2, "aligned", 4, "mean", True, buffer=2),
        _training(2, 2, "aligned", 4, "mean", False, buffer=5),
        _training(2, 1, "aligned", 4, "rloo", False, buffer=1),
        _training(2, 1, "aligned", 4, "max", False, buffer=1),
        _training(3, 1, "aligned", 4, "raw", False, buffer=2),
        _training(2, 2, "cross", 2, "mean", True, buffer=3),
        _training(3, 1, "cross", 2, "mean", True, buffer=1),
    ]


def reference_kl() -> list[Case]:
    """Runs with models that have left their reference."""
    return [
        _training(2, 2, "aligned", 4, "mean", False, buffer=100, coefficient=0.1),
        _training(2, 2, "cross", 2, "raw", False, buffer=100, coefficient=0.1),
    ]


def half_dead() -> Case:
    """One minibatch of two nodes, one of whose rewards are all the same (`script.flat_reward`)."""
    return _training(1, 1, "aligned", 4, "mean", False, buffer=2, tasks=("t0", "t1"))


def metrics() -> list[Case]:
    """Runs whose whole epoch is one drain, so both tell the same nodes in one row per turn."""
    shapes = (
        (1, 1, "aligned", 4),
        (2, 2, "aligned", 4),
        (2, 3, "aligned", 4),
        (3, 2, "cross", 2),
    )
    return [_training(*shape, "mean", True, buffer=100) for shape in shapes]


def evaluations() -> list[Case]:
    """Evaluations of 1 to 3 agents over 1 to 3 turns, a single path per task."""
    return [
        _training(num_agents, num_turns, "aligned", 2, "mean", False, buffer=1, tasks=TASKS)
        for num_agents, num_turns in product((1, 2, 3), (1, 2, 3))
    ]


def _training(
    num_agents: int,
    num_turns: int,
    joint_mode: str,
    num_generations: int,
    mode: str,
    normalize: bool,
    *,
    buffer: int,
    coefficient: float = 0.0,
    tasks: tuple[str, ...] = ("t0", "t3"),
) -> Case:
    return Case(
        num_agents=num_agents,
        num_turns=num_turns,
        joint_mode=joint_mode,
        num_generations=num_generations,
        threshold=None,
        mode=mode,
        normalize=normalize,
        tasks=tasks,
        rollout_buffer_size=buffer,
        even=True,
        reference_kl=coefficient,
    )
