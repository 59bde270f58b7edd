"""The random generators that user code draws from, kept by a checkpoint."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.learner.checkpoints.random_state import RandomState, kept_generators
from antiphon.learner.checkpoints.state_files import load_part, save_part


@pytest.fixture(autouse=True)
def generators_are_kept() -> Iterator[None]:
    with kept_generators():
        yield


def drawn() -> list[float]:
    """Draws from every generator; an odd number of normal ones, which are made in pairs."""
    return [
        random.random(),
        random.gauss(),
        float(np.random.random()),
        float(np.random.normal()),
        float(torch.rand(())),
    ]


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def test_draws_go_on_from_where_the_generators_were_held(tmp_path: Path) -> None:
    seed(1)
    state = RandomState()
    drawn()
    state.hold()
    wanted = [drawn(), drawn()]
    save_part(tmp_path, "random_state", state)

    seed(2)
    load_part(tmp_path, "random_state", RandomState())
    assert [drawn(), drawn()] == wanted


def test_a_state_that_was_loaded_is_held(tmp_path: Path) -> None:
    """A run that is resumed and stopped again before its first prompt is trained."""
    seed(1)
    save_part(tmp_path, "first", RandomState())
    wanted = drawn()

    seed(2)
    resumed = RandomState()
    load_part(tmp_path, "first", resumed)
    drawn()
    save_part(tmp_path, "second", resumed)
    load_part(tmp_path, "second", RandomState())
    assert drawn() == wanted


def test_a_device_that_is_not_here_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seed(1)
    of_two = {**RandomState().state_dict(), "cuda": [torch.ones(16), torch.zeros(16)]}
    wanted = drawn()
    put_back: list[torch.Tensor] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", put_back.extend)
    RandomState().load_state_dict(of_two)
    assert torch.equal(torch.stack(put_back), torch.ones(1, 16))
    assert drawn() == wanted
