"""S17: a damaged file is named, never half read, and nothing in it is run."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import torch
from tests.support.mutation import damaged

from antiphon.clients.types import FieldError
from antiphon.learner.checkpoints.store import CheckpointStore, DamagedError, read_checkpoint
from antiphon.learner.config.run_file import load_run_config
from antiphon.services.common.access import Access
from antiphon.services.common.errors import StartError

INPUTS = int(os.environ.get("FUZZ_INPUTS", "400"))
FIRST_SEED = int(os.environ.get("FUZZ_SEED", "0"))
ROOT = Path(__file__).parents[2]
RUN_FILES = sorted([*ROOT.glob("examples/*.toml"), *ROOT.glob("k8s/overlays/*/run.toml")])
VALUES = (
    "-1",
    "0",
    "1e999",
    "nan",
    "''",
    "'../..'",
    "[]",
    "{}",
    "true",
    "[[1]]",
    "'\\u0000'",
    "9" * 40,
)


def changed_line(text: str, chance: random.Random) -> str:
    """The same file with one setting given another value, or under another name."""
    lines = text.splitlines()
    places = [n for n, line in enumerate(lines) if " = " in line]
    at = chance.choice(places)
    name, _, value = lines[at].partition(" = ")
    if chance.random() < 0.3:
        name = chance.choice(("modle", "__class__", "x.y", '""', name * 2))
    else:
        value = chance.choice(VALUES)
    lines[at] = f"{name} = {value}"
    return "\n".join(lines)


def test_a_damaged_run_file_is_read_or_refused_by_name(tmp_path: Path) -> None:
    """S17"""
    file, refused = tmp_path / "run.toml", 0
    for seed in range(FIRST_SEED, FIRST_SEED + INPUTS):
        chance = random.Random(f"run file {seed}")
        good = chance.choice(RUN_FILES).read_text()
        if chance.random() < 0.5:
            file.write_text(changed_line(good, chance))
        else:
            file.write_bytes(damaged(good.encode(), chance))
        try:
            load_run_config(file)
        except FieldError:
            refused += 1
    assert refused > INPUTS // 4


ACCESS = """
[learner]
roles = ["generate", "push", "score", "transition"]
tokens = ["only-the-learner-has-this", "and-this-will-be-the-next-one"]
[operator]
roles = ["watch", "control"]
certificates = ["operator.example.org"]
[dashboard]
roles = ["watch"]
tokens = ["the-dashboard-has-this-one"]
"""
SECRETS = ("the-learner-has", "will-be-the-next", "dashboard-has-this")
FOUND_IN_ACCESS = (3303,)
"""Seeds that once told a token: it stood in the place of a caller's name."""


def test_a_damaged_access_file_is_read_or_refused_without_telling_secrets(tmp_path: Path) -> None:
    """S17, S18"""
    file, said = tmp_path / "access.toml", list[str]()
    for seed in (*FOUND_IN_ACCESS, *range(FIRST_SEED, FIRST_SEED + INPUTS)):
        chance = random.Random(f"access file {seed}")
        if chance.random() < 0.5:
            file.write_text(changed_line(ACCESS, chance))
        else:
            file.write_bytes(damaged(ACCESS.encode(), chance))
        try:
            Access(None, file, certificates_shown=True)
        except StartError as error:
            said.append(f"seed {seed}: {error}")
    assert len(said) > INPUTS // 4
    assert [text for text in said if any(secret in text for secret in SECRETS)] == []


class Part:
    """A component whose state has every kind of value."""

    STATE = {  # noqa: RUF012
        "weights": torch.arange(64, dtype=torch.float32),
        "moments": [torch.ones(3, 5), {"step": 7, "name": "adam"}],
        "nothing": None,
    }

    def state_dict(self) -> dict[str, Any]:
        return self.STATE

    def load_state_dict(self, state: Any) -> None:
        raise NotImplementedError


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def test_a_damaged_checkpoint_is_refused_or_gives_just_what_was_saved(tmp_path: Path) -> None:
    """S12, S17: garbage is not loaded."""
    about = {"run_id": "run", "incarnation": 1, "prompts": 3}
    saved = CheckpointStore(tmp_path).save(about, {"policy_0": Part()}, total_limit=None)
    files = {path: path.read_bytes() for path in sorted(saved.path.iterdir())}
    refused = 0
    for seed in range(FIRST_SEED, FIRST_SEED + INPUTS):
        chance = random.Random(f"checkpoint {seed}")
        path = chance.choice(list(files))
        path.write_bytes(damaged(files[path], chance))
        try:
            found = read_checkpoint(saved.path)
            assert {name: found.about[name] for name in about} == about
            assert same(found.state("policy_0"), Part.STATE), f"{path.name} seed {seed}"
        except DamagedError:
            refused += 1
        finally:
            path.write_bytes(files[path])
    assert refused > INPUTS // 2
