"""Seeds of completions."""

from __future__ import annotations

import subprocess
import sys

from antiphon.clients.types import Phase
from antiphon.learner.rollout.seeds import completion_seed, stable_hash

BASE = {
    "run_seed": 7,
    "phase": Phase.TRAIN,
    "epoch": 1,
    "row": 3,
    "path": (2,),
    "agent": 0,
    "sample": 1,
}


def test_a_seed_is_the_same_in_another_process() -> None:
    code = (
        "from antiphon.learner.rollout.seeds import *; from antiphon.clients.types import Phase;"
        "print(completion_seed(7, Phase.TRAIN, 1, 3, (2,), 0, 1))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert int(printed) == completion_seed(**BASE)


def test_a_seed_depends_on_everything_that_a_completion_is_for() -> None:
    changes = [
        {"run_seed": 8},
        {"phase": Phase.EVAL},
        {"epoch": 2},
        {"row": 4},
        {"path": (3,)},
        {"path": (2, 0)},
        {"path": ()},
        {"agent": 1},
        {"sample": 2},
    ]
    seeds = {completion_seed(**{**BASE, **change}) for change in changes}
    assert len(seeds) == len(changes)
    assert completion_seed(**BASE) not in seeds


def test_neighbouring_numbers_do_not_run_into_each_other() -> None:
    """Path (1, 2) of row 3 and path (2,) of row 31 must not read the same."""
    assert completion_seed(**{**BASE, "row": 3, "path": (1, 2)}) != completion_seed(
        **{**BASE, "row": 31, "path": (2,)}
    )
    assert stable_hash(1, 23) != stable_hash(12, 3)
    assert stable_hash(1) != stable_hash("1")


def test_seeds_use_all_64_bits() -> None:
    seeds = [completion_seed(**{**BASE, "sample": s}) for s in range(512)]
    assert all(0 <= seed < 2**64 for seed in seeds)
    for bit in range(64):
        ones = sum(seed >> bit & 1 for seed in seeds)
        assert 180 < ones < 332  # 512 fair coins: 256 plus or minus 6.7 standard deviations


def test_the_hash_is_the_one_that_runs_were_recorded_with() -> None:
    """A changed hash would make every stored run irreproducible."""
    assert stable_hash("completion", 0, "train", 1, 0, (), 0, 0) == 16595358112086010507
