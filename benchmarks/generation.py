"""How fast are completions sampled? antiphon's engine against transformers, on the same work.

    make bench-generation
    python -m benchmarks.generation --sizes 8 32 --agents 1

SmolLM2 in float32 on CPU, four samples of each prompt, temperature 0.6, top_k 50, top_p 0.6. Every
completion has 64 tokens (fixed), or what its end token leaves of 128 (mixed): the lengths are those
that antiphon samples, and the others are told to end each sequence after as many. One agent has
all cores; two agents side by side share them. Before a time counts, all sides must have sampled as
many tokens, and the log-probabilities that antiphon reports must be those of a fresh forward.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self, cast

from benchmarks.generation_parts.work import Lengths, Side
from benchmarks.peer import ROOT
from benchmarks.results import Row, write
from examples.smollm2 import prepare

SIZES = (8, 32, 128)
WANTED: dict[Lengths, float] = {"fixed": 1.3, "mixed": 1.8}
NAMES: dict[Lengths, str] = {"fixed": "generation", "mixed": "generation_mixed"}
_CHECKED = 6
_TOLERANCE = 1e-3


class Worker:
    """A process of one side."""

    def __init__(self, side: str, model: str, lengths: Lengths, threads: int, *, alone: bool):
        module = "benchmarks.generation_parts.worker"
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }
        # transformers alone on the machine keeps the default, which is its best; antiphon's
        # service sets it, and side by side threads that spin would take each other's cores.
        if side == "antiphon" or not alone:
            environment["OMP_WAIT_POLICY"] = "PASSIVE"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, side, model, lengths, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def __enter__(self) -> Self:
        self.answer()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def ask(self, **what: Any) -> None:
        """Sends a task."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Waits for what became of it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a side ended with code {self._process.wait()}; its error is above")
        return cast("dict[str, Any]", json.loads(line))


def together(workers: Sequence[Worker], **what: Any) -> list[dict[str, Any]]:
    """Gives all workers the same task at once and waits for all answers."""
    for worker in workers:
        worker.ask(**what)
    return [worker.answer() for worker in workers]


def measure(
    ours: Sequence[Worker], theirs: Sequence[Worker], size: int, repetitions: int
) -> dict[str, Any]:
    """Tokens per second of each side, in turn, and the ratio to the better of the others.

    Raises:
        SystemExit: The sides did different work, or log-probabilities are wrong.
    """
    rates: dict[Side, list[float]] = {"antiphon": [], "generate": [], "continuous": []}
    cpu: dict[Side, list[float]] = {side: [] for side in rates}
    answers = together(ours, side="antiphon", size=size)
    lengths = answers[0]["lengths"]
    completions = answers[0]["completions"]
    checked = completions[:: max(1, len(completions) // _CHECKED)]
    error = together(theirs[:1], side="check", size=size, completions=checked)[0]["error"]
    if not error < _TOLERANCE:
        raise SystemExit(f"log-probabilities are off by {error:.3g} from a fresh forward")
    sides: list[Side] = ["antiphon", "generate", "continuous"]
    for repetition in range(repetitions):
        for side in sides:
            if side == "antiphon":
                # The first run was the warm-up of the smallest size.
                answers = together(ours, side=side, size=size)
            else:
                answers = together(theirs, side=side, size=size, lengths=lengths)
            if any(answer["lengths"] != lengths for answer in answers):
                raise SystemExit(f"{side} sampled other numbers of tokens than antiphon")
            seconds = max(answer["seconds"] for answer in answers)
            rates[side].append(len(answers) * sum(lengths) / seconds)
            cpu[side].append(sum(answer["cpu_seconds"] for answer in answers))
        if repetition == 0 and rates["continuous"][0] < 0.7 * rates["generate"][0]:
            sides.remove("continuous")  # It will not be the better one.
    medians = {side: statistics.median(found) for side, found in rates.items()}
    best = max(medians["generate"], medians["continuous"])
    return {
        "tokens": len(ours) * sum(lengths),
        "shortest": min(lengths),
        "longest": max(lengths),
        "largest_logprob_error": error,
        "tokens_per_second": {side: round(rate, 1) for side, rate in medians.items()},
        "cpu_seconds": {side: round(statistics.median(found), 2) for side, found in cpu.items()},
        "ratio": round(medians["antiphon"] / best, 3),
    }


def run(lengths: Lengths, agents: int, sizes: Sequence[int], repetitions: int) -> dict[str, Any]:
    """All sizes for a kind of lengths and a number of agents, by name."""
    model, cores = str(prepare()), os.cpu_count() or 1
    threads = max(1, cores // agents)
    found = {}
    with ExitStack() as stack:
        ours, theirs = (
            [
                stack.enter_context(Worker(side, model, lengths, threads, alone=agents == 1))
                for _ in range(agents)
            ]
            for side in ("antiphon", "transformers")
        )
        warm = together(ours, side="antiphon", size=8)[0]["lengths"]
        together(theirs, side="generate", size=8, lengths=[8] * len(warm))
        for size in sizes:
            case = measure(ours, theirs, size, repetitions if size < 100 else 1)
            found[f"{agents} x {size} {lengths}"] = case
            print(f"{agents} x {size} {lengths}: {json.dumps(case)}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure, check, print and keep the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="sequences at once")
    parser.add_argument("--agents", type=int, nargs="+", default=(1, 2), help="side by side")
    parser.add_argument("--lengths", nargs="+", choices=WANTED, default=tuple(WANTED))
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    for lengths in arguments.lengths:
        cases: dict[str, Any] = {}
        for agents in arguments.agents:
            cases |= run(lengths, agents, arguments.sizes, arguments.repetitions)
        worst = min(case["ratio"] for case in cases.values())
        row = Row(
            name=NAMES[lengths],
            value=worst,
            unit="times",
            wanted=f"at least {WANTED[lengths]}",
            holds=worst >= WANTED[lengths],
            baseline="the better of transformers' generate and continuous batching; the worst case",
            details=cases,
        )
        write(row)


if __name__ == "__main__":
    main()
