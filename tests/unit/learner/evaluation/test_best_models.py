"""The models of the best evaluation are there whole, whatever happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.clients.types import FieldError
from antiphon.learner.evaluation.best_models import BestModels

METRIC = "eval/turn_1/reward_mean"


class Models:
    """Saves a file that says which models these are."""

    def __init__(self) -> None:
        self.name = "first"

    def save(self, folder: Path) -> None:
        (folder / "agent_0").mkdir(parents=True)
        (folder / "agent_0" / "model").write_text(self.name)


def best_in(folder: Path, models: Models | None = None, mode: str = "max") -> BestModels:
    return BestModels(folder, metric=METRIC, mode=mode, save=(models or Models()).save)


def kept(folder: Path) -> tuple[str, dict[str, Any]]:
    model = (folder / "best" / "agent_0" / "model").read_text()
    return model, json.loads((folder / "best" / "best.json").read_text())


@pytest.mark.parametrize(
    ("mode", "best", "values"),
    [
        ("max", 0.5, {0.6: True, 0.5: False, 0.4: False}),
        ("min", 0.5, {0.6: False, 0.5: False, 0.4: True}),
    ],
)
def test_only_a_better_value_is_better(
    tmp_path: Path, mode: str, best: float, values: dict[float, bool]
) -> None:
    made = best_in(tmp_path, mode=mode)
    assert not made.better(float("nan"))
    assert made.better(best)
    made.keep(best, {})
    assert {value: made.better(value) for value in values} == values
    assert not made.better(float("nan"))


def test_better_models_take_the_place_of_those_before(tmp_path: Path) -> None:
    models = Models()
    best = best_in(tmp_path, models)
    assert best.keep(0.25, {"epoch": 1, "prompts": 8}) == tmp_path / "best"
    assert kept(tmp_path) == (
        "first",
        {"metric": METRIC, "mode": "max", "value": 0.25, "epoch": 1, "prompts": 8},
    )
    models.name = "second"
    best.keep(0.5, {"epoch": 2})
    model, about = kept(tmp_path)
    assert (model, about["value"], about["epoch"]) == ("second", 0.5, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_models_that_cannot_be_saved_leave_those_before(tmp_path: Path) -> None:
    models = Models()
    best = best_in(tmp_path, models)
    best.keep(0.25, {})

    def fail(folder: Path) -> None:
        folder.mkdir()
        raise OSError("disk full")

    models.save = fail  # type: ignore[method-assign]
    broken = best_in(tmp_path, models)
    with pytest.raises(OSError, match="disk full"):
        broken.keep(0.5, {})
    assert (kept(tmp_path)[1]["value"], broken.value) == (0.25, None)


def test_a_resumed_run_goes_on_from_its_best_value(tmp_path: Path) -> None:
    before = best_in(tmp_path)
    before.keep(0.25, {})
    state = before.state_dict()
    assert state == {"metric": METRIC, "mode": "max", "value": 0.25}
    after = best_in(tmp_path)
    after.load_state_dict(state)
    assert after.value == 0.25


def test_better_models_made_after_the_checkpoint_are_not_lost(tmp_path: Path) -> None:
    """A run that was killed and repeats from its checkpoint must not put worse ones there."""
    before = best_in(tmp_path)
    before.keep(0.25, {})
    state = before.state_dict()
    before.keep(0.5, {})
    after = best_in(tmp_path)
    after.load_state_dict(state)
    assert after.value == 0.5


def test_another_metric_or_mode_begins_anew(tmp_path: Path) -> None:
    before = best_in(tmp_path)
    before.keep(0.25, {})
    after = best_in(tmp_path, mode="min")
    after.load_state_dict(before.state_dict())
    assert after.value is None


def test_a_kill_between_the_two_renames_is_put_right(tmp_path: Path) -> None:
    models = Models()
    before = best_in(tmp_path, models)
    before.keep(0.25, {})
    state = before.state_dict()
    models.name = "second"
    before.keep(0.5, {})
    # As a kill leaves it: the old ones are aside, the new ones not yet in their place.
    (tmp_path / "best").rename(tmp_path / ".best.new")
    (tmp_path / ".best.old").mkdir()
    after = best_in(tmp_path)
    after.load_state_dict(state)
    assert after.value == 0.5
    assert kept(tmp_path)[0] == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "damaged JSON"),
        ("{}", "no metric"),
        (f'{{"metric": "{METRIC}", "mode": 5, "value": 1}}', "mode 5"),
        (f'{{"metric": "{METRIC}", "mode": "max", "value": "1"}}', 'value "1"'),
    ],
)
def test_a_damaged_file_about_them_is_named_with_what_is_wrong(
    tmp_path: Path, text: str, problem: str
) -> None:
    """S17"""
    before = best_in(tmp_path)
    before.keep(0.25, {})
    (tmp_path / "best" / "best.json").write_text(text)
    with pytest.raises(FieldError, match=rf"best\.json: got {problem}.*take it from a copy"):
        best_in(tmp_path).load_state_dict(before.state_dict())
