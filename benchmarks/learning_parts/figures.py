"""From runs to figures: curves, samples and seconds to a reward level, intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.learning_parts.task import Settings

LEVEL = 0.75
"""The reward to reach: mean of both turns, over the last `WINDOW` prompts.

Half of the way from both agents listing all words of a topic to sharing them out.
"""
WINDOW = 10
RESAMPLES = 10_000
QUIET = 6.0
"""Load average up to which the seconds of a run count: its own processes and niced ones."""


@dataclass(frozen=True)
class Run:
    """One arm with one seed; arrays have an entry per prompt.

    Attributes:
        turns: Mean reward of each turn, [T, prompts].
        seconds: When the prompt's last reward was told, since the process began.
        cpu: Seconds of processor that all processes of the run had used by then.
        start: Seconds until the first reward.
        start_cpu: The same in seconds of processor.
        load: The machine's load average meanwhile, this run's own share included.
        steps: Optimiser steps of each agent.
        code: Digest of the sources that it ran (`sources.digest`), of antiphon's runs only.
    """

    arm: str
    seed: int
    turns: np.ndarray
    seconds: np.ndarray
    cpu: np.ndarray
    start: float
    start_cpu: float
    load: float
    steps: tuple[int, ...]
    code: str | None = None

    @property
    def smooth(self) -> np.ndarray:
        """Mean of both turns over the last `WINDOW` prompts; from the `WINDOW`-th prompt on."""
        return np.convolve(self.turns.mean(axis=0), np.ones(WINDOW) / WINDOW, mode="valid")

    @property
    def reached(self) -> int | None:
        """Prompts until the level was reached."""
        above = np.flatnonzero(self.smooth >= LEVEL)
        return int(above[0]) + WINDOW if len(above) else None

    @property
    def quiet(self) -> bool:
        """Whether the machine did little else meanwhile, so that its seconds count."""
        return self.load <= QUIET


def read_run(told: dict[str, Any], settings: Settings) -> Run:
    """A run from what `one_run` wrote.

    Raises:
        ValueError: It did not score what every arm must.
    """
    wanted = settings.prompts * settings.joint_actions_per_prompt
    if len(told["rewards"]) != wanted or len(told["seconds"]) != settings.prompts + 1:
        raise ValueError(
            f"{told['arm']}, seed {told['seed']}: {len(told['rewards'])} rewards, not {wanted}"
        )
    rewards = np.array(told["rewards"]).reshape(settings.prompts, -1)
    bounds = np.cumsum(settings.joint_actions_per_turn)[:-1]
    turns = [part.mean(axis=1) for part in np.split(rewards, bounds, axis=1)]
    return Run(
        arm=told["arm"],
        seed=told["seed"],
        turns=np.array(turns),
        seconds=np.array(told["seconds"][1:]),
        cpu=np.array(told["cpu"][1:]),
        start=told["seconds"][0],
        start_cpu=told["cpu"][0],
        load=float(np.mean(told["load"])),
        steps=tuple(told["optimizer_steps"]),
        code=told.get("code"),
    )


def interval(values: Sequence[float]) -> dict[str, float]:
    """Mean and its 95 % interval: percentile bootstrap over seeds, the same draws every time."""
    data = np.array(values, dtype=float)
    draws = np.random.default_rng(0).integers(len(data), size=(RESAMPLES, len(data)))
    low, high = np.percentile(data[draws].mean(axis=1), [2.5, 97.5])
    return {"mean": float(data.mean()), "low": float(low), "high": float(high)}


def until_level(run: Run, settings: Settings) -> dict[str, float]:
    """Samples and seconds until the level; of the whole run where it never got there."""
    prompts = run.reached or settings.prompts
    return {
        "samples": prompts * settings.joint_actions_per_prompt,
        "seconds": float(run.seconds[prompts - 1]),
        "seconds_after_start": float(run.seconds[prompts - 1] - run.start),
        "cpu_seconds": float(run.cpu[prompts - 1]),
    }


SECONDS = ("seconds", "seconds_after_start")
"""What of `until_level` counts on a quiet machine only."""


def _quiet(runs: Sequence[Run]) -> list[Run]:
    """The runs whose seconds count; all where the machine was never quiet."""
    return [run for run in runs if run.quiet] or list(runs)


def of_arm(runs: Sequence[Run], settings: Settings) -> dict[str, Any]:
    """The figures of one arm over its seeds."""
    until = [until_level(run, settings) for run in runs]
    timed = _quiet(runs)
    last = max(1, settings.prompts // 10)
    figures: dict[str, Any] = {
        "seeds": [run.seed for run in runs],
        "code": sorted({run.code for run in runs if run.code is not None}),
        "reached": sum(run.reached is not None for run in runs),
        "optimizer_steps": interval([float(np.mean(run.steps)) for run in runs]),
        "timed": {"runs": len(timed), "quiet": all(run.quiet for run in timed)},
        "start_seconds": interval([run.start for run in timed]),
        "start_cpu_seconds": interval([run.start_cpu for run in runs]),
        "load_average": interval([run.load for run in runs]),
        "total_seconds": interval([float(run.seconds[-1]) for run in timed]),
        "until_level": {
            name: interval(
                [until_level(run, settings)[name] for run in (timed if name in SECONDS else runs)]
            )
            for name in until[0]
        },
        "until_level_per_seed": until,
        "final_reward": {},
        "curves": {"samples": [], "seconds": _rounded(_mean(run.seconds for run in timed))},
    }
    curves = figures["curves"]
    curves["samples"] = [
        settings.joint_actions_per_prompt * (prompt + 1) for prompt in range(settings.prompts)
    ]
    for turn in range(settings.num_turns):
        name = f"turn_{turn + 1}"
        figures["final_reward"][name] = interval([run.turns[turn, -last:].mean() for run in runs])
        curves[name] = _curve([run.turns[turn] for run in runs])
    both = [run.turns[:, -last:].mean() for run in runs]
    figures["final_reward"]["both_turns"] = interval(both)
    figures["final_reward_per_seed"] = _rounded(np.array(both))
    return figures


def _mean(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return np.array(list(arrays)).mean(axis=0)


def _rounded(array: np.ndarray) -> list[float]:
    return [round(float(value), 4) for value in array]


def _curve(rewards: Sequence[np.ndarray]) -> dict[str, list[float]]:
    """Mean over seeds with its interval, each a mean over the last `WINDOW` prompts."""
    smooth = np.array(
        [[one[max(0, i + 1 - WINDOW) : i + 1].mean() for i in range(len(one))] for one in rewards]
    )
    points = [interval(column) for column in smooth.T]
    return {name: [round(point[name], 4) for point in points] for name in ("mean", "low", "high")}


def compared(ours: Sequence[Run], peers: Sequence[Run], settings: Settings) -> dict[str, Any]:
    """Ours against the peer, seed by seed.

    Differences are ours minus the peer's; ratios are geometric means of ours over the peer's.
    Where a run never reached the level, the whole run's samples and seconds stand in for it.
    """
    pairs = [(mine, theirs) for mine in ours for theirs in peers if mine.seed == theirs.seed]
    timed = [(a, b) for a, b in pairs if a.quiet and b.quiet] or pairs
    until = [(until_level(a, settings), until_level(b, settings)) for a, b in pairs]
    last = max(1, settings.prompts // 10)

    def ratio(name: str) -> dict[str, float]:
        of = timed if name in SECONDS else pairs
        both = [(until_level(a, settings)[name], until_level(b, settings)[name]) for a, b in of]
        logs = interval([math.log(mine / theirs) for mine, theirs in both])
        return {key: math.exp(value) for key, value in logs.items()}

    return {
        "seeds": [mine.seed for mine, _ in pairs],
        "timed": {"pairs": len(timed), "quiet": all(a.quiet and b.quiet for a, b in timed)},
        "both_reached": sum(a.reached is not None and b.reached is not None for a, b in pairs),
        "samples_difference": interval([a["samples"] - b["samples"] for a, b in until]),
        "samples_ratio": ratio("samples"),
        "seconds_ratio": ratio("seconds"),
        "seconds_ratio_after_start": ratio("seconds_after_start"),
        "cpu_seconds_ratio": ratio("cpu_seconds"),
        "final_reward_difference": interval(
            [float(a.turns[:, -last:].mean() - b.turns[:, -last:].mean()) for a, b in pairs]
        ),
    }
