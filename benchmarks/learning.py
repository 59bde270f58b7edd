"""Does it learn as well, and sooner? CoMLRL and antiphon on one task, over several seeds.

    make bench-learning
    python -m benchmarks.learning --seeds 2 --arms antiphon-plain comlrl-plain

Same start weights, task, rewards, number of samples, buffer sizes and learning rate. Finished runs
are kept in .cache/learning, so that an interrupted benchmark goes on; those of antiphon are run
again where its sources have changed. Seconds are taken of the runs that met a quiet machine;
`--again` runs some seeds anew for that. CoMLRL computes in one thread and gets a core of its own
(two seeds side by side, where there are two cores); a run of antiphon has the cores to itself. The
results, the plot and the tables of docs/learning.md are written when arms have run with the ten
reported seeds, 0 and up; arms that did not run keep what was found before.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.learning_parts import figures, page, plot, sources, task
from benchmarks.learning_parts.snapshot import make_snapshot
from benchmarks.peer import BASELINE, ROOT, run_peer
from benchmarks.results import machine

CACHE = ROOT / ".cache" / "learning"
RESULTS = ROOT / "benchmarks" / "results" / "learning.json"
PLOT = ROOT / "docs" / "learning.svg"
PAGE = ROOT / "docs" / "learning.md"
MODULE = "benchmarks.learning_parts.one_run"
REPORTED = 10
"""Seeds that the results are of."""
PAIRS = {
    "antiphon-plain": "comlrl-plain",
    "antiphon-defaults-sampled": "comlrl-defaults",
    "antiphon-defaults-full": "comlrl-defaults",
}


def cache_folder(settings: task.Settings) -> Path:
    """Where the runs of these settings are kept: another task or model has another folder."""
    parts = ROOT / "benchmarks" / "learning_parts"
    told = [json.dumps(asdict(settings), sort_keys=True)]
    told += [(parts / name).read_text() for name in ("task.py", "snapshot.py")]
    folder = CACHE / hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def snapshot(folder: Path, seed: int) -> Path:
    """The start weights of a seed, made where they are missing."""
    path = folder / f"snapshot-{seed}"
    if not path.exists():
        partial = folder / f"snapshot-{seed}.part"
        make_snapshot(partial, seed)
        partial.rename(path)
    return path


def usable(out: Path, code: str | None) -> bool:
    """Whether a run has been done, and with this code of antiphon; CoMLRL's runs have none."""
    return out.exists() and json.loads(out.read_text()).get("code") == code


def run(
    arm: str, seed: int, cores: Sequence[int], folder: Path, settings: task.Settings
) -> figures.Run:
    """Run one arm with one seed on `cores`, unless that has been done with the present code."""
    out = folder / f"{arm}-{seed}.json"
    code = sources.digest() if task.ARMS[arm].side == "antiphon" else None
    if not usable(out, code):
        os.sched_setaffinity(0, cores)  # of this thread, and of what it starts
        start = snapshot(folder, seed)
        told = json.dumps(asdict(settings))
        arguments = (arm, str(seed), str(start), str(out), told, code or "")
        if task.ARMS[arm].side == "comlrl":
            run_peer(MODULE, *arguments)
        else:
            run_ours(*arguments)
    finished = figures.read_run(json.loads(out.read_text()), settings)
    until = figures.until_level(finished, settings)
    reached = f"reached at {until['seconds']:.0f} s" if finished.reached else "not reached"
    print(
        f"{arm}, seed {seed}: {finished.seconds[-1]:.0f} s, last reward "
        f"{finished.smooth[-1]:.2f}, {figures.LEVEL} {reached}",
        flush=True,
    )
    return finished


def run_ours(*arguments: str) -> None:
    """Run a module of ours as a script of a user would run."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
    }
    command = [sys.executable, "-m", MODULE, *arguments]
    subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


def run_all(
    arms: Sequence[str], seeds: Sequence[int], settings: task.Settings
) -> dict[str, list[figures.Run]]:
    """Run everything, two seeds at a time, the sides in turn."""
    folder = cache_folder(settings)
    cores = sorted(os.sched_getaffinity(0))[:2]
    runs: dict[str, list[figures.Run]] = {arm: [] for arm in arms}
    with ThreadPoolExecutor(len(cores)) as side_by_side, ThreadPoolExecutor(1) as alone:
        for first in range(0, len(seeds), len(cores)):
            some = seeds[first : first + len(cores)]
            list(side_by_side.map(lambda seed: snapshot(folder, seed), some))
            for arm in arms:
                if task.ARMS[arm].side == "comlrl":
                    jobs = [
                        side_by_side.submit(run, arm, seed, [core], folder, settings)
                        for seed, core in zip(some, cores, strict=False)
                    ]
                else:
                    jobs = [alone.submit(run, arm, seed, cores, folder, settings) for seed in some]
                runs[arm] += [job.result() for job in jobs]
    return runs


def report(runs: dict[str, list[figures.Run]], settings: task.Settings) -> dict[str, Any]:
    """All figures of the benchmark."""
    return {
        "baseline": BASELINE,
        "settings": asdict(settings),
        "level": figures.LEVEL,
        "window_prompts": figures.WINDOW,
        "interval": "95 %, percentile bootstrap over seeds",
        "quiet_load": figures.QUIET,
        "arms": {
            arm: {"machine": machine(), **figures.of_arm(some, settings)}
            for arm, some in runs.items()
        },
        "compared": {
            ours: {"with": peer, **figures.compared(runs[ours], runs[peer], settings)}
            for ours, peer in PAIRS.items()
            if ours in runs and peer in runs
        },
    }


def with_kept(result: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """`result`, with the arms and pairs of an earlier one that it has not itself.

    Raises:
        ValueError: The earlier one is of other settings.
    """
    differ = [key for key in ("settings", "level", "baseline") if result[key] != before[key]]
    if differ:
        raise ValueError(f"{RESULTS.name} is of another {', '.join(differ)}; run every arm anew")
    arms = {**before["arms"], **result["arms"]}
    compared = {**before["compared"], **result["compared"]}
    return {**result, "arms": arms, "compared": compared}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=REPORTED, help="how many (default 10)")
    parser.add_argument("--first-seed", type=int, default=0, help="100 and up are for tuning")
    parser.add_argument("--arms", nargs="+", choices=list(task.ARMS), default=list(task.ARMS))
    parser.add_argument(
        "--again", type=int, default=0, help="run so many of the first seeds anew, to time them"
    )
    parser.add_argument("--prompts", type=int, default=task.SETTINGS.prompts)
    parser.add_argument("--num-generations", type=int, default=task.SETTINGS.num_generations)
    parser.add_argument("--learning-rate", type=float, default=task.SETTINGS.learning_rate)
    told = parser.parse_args()
    settings = replace(
        task.SETTINGS,
        prompts=told.prompts,
        num_generations=told.num_generations,
        learning_rate=told.learning_rate,
    )
    torch.set_num_threads(1)
    seeds = range(told.first_seed, told.first_seed + told.seeds)
    for seed in seeds[: told.again]:
        for arm in told.arms:
            (cache_folder(settings) / f"{arm}-{seed}.json").unlink(missing_ok=True)
    result = report(run_all(told.arms, seeds, settings), settings)
    print(page.tables(result))
    if told.first_seed == 0 and told.seeds >= REPORTED and settings == task.SETTINGS:
        if RESULTS.exists() and set(told.arms) != set(task.ARMS):
            result = with_kept(result, json.loads(RESULTS.read_text()))
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
        PLOT.write_text(plot.draw(result["arms"], figures.LEVEL))
        PAGE.write_text(page.with_tables(PAGE.read_text(), result))
        print(f"written: {', '.join(str(p.relative_to(ROOT)) for p in (RESULTS, PLOT, PAGE))}")


if __name__ == "__main__":
    main()
