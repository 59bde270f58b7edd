"""Promise 2: whatever fails, nothing is lost, nothing is invented, and nothing hangs.

A plan of faults, made from a seed, is done to a training of two agents; then it is held against a
calm one. Twenty faults in every run of the tests; `make chaos` does 200 (FAULTS, SEED).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.chaos.flood import CALLS, NOBODY
from tests.chaos.plan import LEARNER, plan
from tests.chaos.programs import Births
from tests.chaos.run import PROMPTS, Ended, World
from tests.chaos.table import print_table
from tests.e2e.test_resume import figures, trees
from tests.e2e.tiny_task import reward as weigh
from tests.support import run_folders
from tests.support.models import tiny_folder

from antiphon.clients.digest import weights_digest
from antiphon.clients.types import TensorDtype
from antiphon.services.common.models import load_model
from antiphon.services.common.tensors import tensor_specs, wire_tensors

FAULTS = int(os.environ.get("FAULTS", "20"))
SEED = int(os.environ.get("SEED", "1"))
EPOCHS = max(2, FAULTS // 4)
SECONDS = 120 + 10 * FAULTS
GROWTH_BYTES = 24 << 20
GROWTH_OF_LIVES_BYTES = 12 << 20
MORE_FILES = 4
MORE_THREADS = 8

pytestmark = pytest.mark.timeout(2 * SECONDS)


@dataclass(frozen=True)
class Runs:
    """The same training twice."""

    calm: Ended
    chaotic: Ended


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """A calm run, and one to which the faults of the seed are done, within a bounded time."""
    folder = tmp_path_factory.mktemp("c")
    births = Births()
    try:
        models = [tiny_folder(folder / f"model-{seed}", seed=seed) for seed in range(2)]
        calm = asyncio.run(World(folder / "calm", births, models, EPOCHS).run())
        faults = plan(SEED, FAULTS, calm.passed)
        world = World(folder / "chaos", births, models, EPOCHS)
        try:
            chaotic = asyncio.run(asyncio.wait_for(world.run(faults), SECONDS))
        finally:
            print_table(SEED, faults, world.ended.outcomes)
        yield Runs(calm, chaotic)
    finally:
        births.close()


def test_a_run_ends_whatever_faults_are_done_to_it(runs: Runs) -> None:
    assert [outcome.fault.number for outcome in runs.chaotic.outcomes] == [*range(1, FAULTS + 1)]
    ends = Counter(
        outcome.fault.kind in ("kill", "restart")
        for outcome in runs.chaotic.outcomes
        if outcome.fault.victim == LEARNER
    )
    assert runs.chaotic.lives == 1 + ends[True]
    for ended in (runs.calm, runs.chaotic):
        assert json.loads((ended.folder / "summary.json").read_text())["state"] == "finished"


def test_nobody_is_let_in(runs: Runs) -> None:
    refused = {"UNAUTHENTICATED", "RESOURCE_EXHAUSTED", *NOBODY}
    floods = [o for o in runs.chaotic.outcomes if o.fault.kind == "flood"]
    for flood in floods:
        strangers = flood.done.strangers
        assert strangers.total() == CALLS
        assert strangers.keys() - NOBODY, "nobody was there to be flooded"
        # The learner's own service has no guard but loopback here.
        assert flood.fault.victim == LEARNER or strangers.keys() <= refused


def test_every_prompt_is_trained_once_per_epoch_with_the_answers_of_the_calm_run(
    runs: Runs,
) -> None:
    order = [(epoch, row) for epoch in range(1, EPOCHS + 1) for row in range(len(PROMPTS))]
    found = trees(runs.chaotic.home)
    assert [(epoch, row) for epoch, row, _ in found] == order
    assert found == trees(runs.calm.home)
    assert without_versions(runs.chaotic.home) == without_versions(runs.calm.home)


def without_versions(home: Path) -> list[dict[str, Any]]:
    """Figures but that of a publish: a resumed run publishes even where it took no step."""
    return [
        {name: value for name, value in row.items() if not name.endswith("/weights_version")}
        for row in figures(home)
    ]


def test_the_weights_are_bitwise_those_of_the_calm_run(runs: Runs) -> None:
    for agent in range(2):
        file = Path(f"agent_{agent}") / "model.safetensors"
        assert (runs.chaotic.folder / file).read_bytes() == (runs.calm.folder / file).read_bytes()


def test_every_reward_is_the_one_that_the_answers_deserve(runs: Runs) -> None:
    rows = run_folders.rollout_rows(runs.chaotic.folder)
    assert len(rows) == EPOCHS * len(PROMPTS) * 6
    for row in rows:
        assert row["missing_reason"] is None
        assert row["reward"] == row["score"] == weigh(row["texts"])


def test_services_have_the_version_and_the_digest_that_the_learner_ended_with(runs: Runs) -> None:
    summary = json.loads((runs.chaotic.folder / "summary.json").read_text())
    for agent, loaded in enumerate(runs.chaotic.loaded):
        model = load_model(runs.chaotic.folder / f"agent_{agent}", dtype=torch.float32)
        specs = tensor_specs(wire_tensors(model), TensorDtype.FLOAT32)
        assert loaded.digest == weights_digest(specs)
        assert loaded.version == summary["weights_versions"][agent]


def test_nothing_is_left_of_it(runs: Runs) -> None:
    ended = runs.chaotic
    assert ended.left == []
    assert ended.temporary == []
    assert set(ended.codes.values()) == {0}
    for pid in ended.before.keys() & ended.after.keys():
        before, after = ended.before[pid], ended.after[pid]
        assert after.connections == 0
        assert after.files <= before.files + MORE_FILES
        assert after.threads <= before.threads + MORE_THREADS
    assert written(ended.folder) == written(runs.calm.folder)


def written(folder: Path) -> set[str]:
    """What a run wrote down; files of rollouts end where a process did."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in names if not name.startswith("rollouts/")}


def test_memory_stays_flat(runs: Runs) -> None:
    calm = {name: looks[-1] for (name, _), looks in runs.calm.memory.items()}
    for (name, _), looks in runs.chaotic.memory.items():
        early, late = looks[: len(looks) // 2], looks[len(looks) // 2 :]
        assert max(late) < max([*early, looks[0]]) + GROWTH_BYTES, name
        # However short, a life is held against one without faults.
        assert max(looks) < calm[name] + GROWTH_OF_LIVES_BYTES, name
    # It lives for as long as the learner of the calm run at most, beside faults.
    assert 0 < runs.chaotic.learner_memory < runs.calm.learner_memory + GROWTH_BYTES
