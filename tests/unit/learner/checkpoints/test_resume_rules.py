"""What may change on resume, field by field."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.clients.types import FieldError
from antiphon.learner.checkpoints.resume_rules import FREE, NOTED, REFUSED, check_resume
from antiphon.learner.config.magrpo import MAGRPOConfig

Description = dict[str, Any]


def description() -> Description:
    agent = {"model": "/models/tiny", "tokenizer": "aa", "learning_rate": None, "addresses": []}
    return {
        "magrpo": MAGRPOConfig().model_dump(mode="json"),
        "agents": [dict(agent), dict(agent)],
        "reward": {"function": "reward"},
        "transition": {"function": "feedback"},
        "user_code": {"reward_processor": None, "formatters": ["asked", None]},
        "dataset": {"rows": 3, "columns": ["prompt"], "fingerprint": "11"},
    }


def changed(change: Callable[[Description], None]) -> Description:
    made = copy.deepcopy(description())
    change(made)
    return made


def test_every_field_of_the_config_has_a_rule_and_one_only() -> None:
    """A new field is entered in one of the tables of resume_rules.py, with the reason."""
    rules = [*FREE, *NOTED, *REFUSED]
    assert sorted(rules) == sorted(MAGRPOConfig.model_fields)


def test_every_rule_says_why() -> None:
    assert all({**FREE, **NOTED, **REFUSED}.values())


def test_the_same_settings_need_no_word() -> None:
    assert check_resume(description(), description()) == []


@pytest.mark.parametrize("field", sorted(FREE))
def test_what_does_not_touch_the_weights_changes_without_a_word(field: str) -> None:
    now = changed(lambda d: d["magrpo"].update({field: "another"}))
    assert check_resume(description(), now) == []


@pytest.mark.parametrize("field", sorted(NOTED))
def test_what_holds_from_here_on_is_noted_with_both_values(field: str) -> None:
    now = changed(lambda d: d["magrpo"].update({field: "another"}))
    (note,) = check_resume(description(), now)
    assert field in note
    assert "'another'" in note
    assert NOTED[field] in note


@pytest.mark.parametrize("field", sorted(REFUSED))
def test_what_may_not_change_is_refused_with_both_values_and_the_reason(field: str) -> None:
    now = changed(lambda d: d["magrpo"].update({field: "another"}))
    with pytest.raises(FieldError) as refused:
        check_resume(description(), now)
    was = description()["magrpo"][field]
    assert f"{field} was {was!r} and is 'another': {REFUSED[field]}" in str(refused.value)


def test_all_refused_changes_are_told_at_once() -> None:
    now = changed(lambda d: d["magrpo"].update(seed=5, num_turns=3))
    with pytest.raises(FieldError, match=r"num_turns was 2 and is 3.*seed was 0 and is 5"):
        check_resume(description(), now)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d["agents"][1].update(model="/models/other"), r"agents\[1\] was '/models/tiny'"),
        (lambda d: d["agents"][0].update(tokenizer="bb"), r"agents\[0\] has another tokenizer"),
        (lambda d: d["dataset"].update(rows=4, fingerprint="22"), "had 3 rows and has 4 rows"),
        (lambda d: d["dataset"].update(rows=None, fingerprint=None), "has no known length"),
        (lambda d: d["dataset"].update(fingerprint="22"), "rows have changed"),
    ],
    ids=["model", "tokenizer", "length", "unknown length", "rows"],
)
def test_other_models_and_other_data_are_refused(
    change: Callable[[Description], None], reason: str
) -> None:
    with pytest.raises(FieldError, match=reason):
        check_resume(description(), changed(change))


def test_a_model_s_folder_may_have_moved_and_services_too() -> None:
    def move(made: Description) -> None:
        made["agents"][0].update(model="/elsewhere/tiny", addresses=["host:1"])

    assert check_resume(description(), changed(move)) == []


def test_another_reward_or_learning_rate_of_an_agent_is_noted() -> None:
    def change(made: Description) -> None:
        made["reward"] = {"address": "host:2"}
        made["agents"][1]["learning_rate"] = 0.5

    rate, reward = check_resume(description(), changed(change))
    assert "agents[1].learning_rate was None and is 0.5" in rate
    assert "reward was reward and is host:2" in reward


def test_other_formatters_and_processors_are_noted() -> None:
    def change(made: Description) -> None:
        made["user_code"] = {"reward_processor": "halved", "formatters": ["asked", "told"]}

    processor, formatters = check_resume(description(), changed(change))
    assert "reward_processor was None and is halved" in processor
    assert "formatters was ['asked', None] and is ['asked', 'told']" in formatters
    older = changed(lambda d: d.pop("user_code"))
    assert check_resume(older, description()) == []


def test_a_field_that_an_older_checkpoint_does_not_know_had_its_default() -> None:
    before = changed(lambda d: d["magrpo"].pop("discount"))
    assert check_resume(before, description()) == []
    with pytest.raises(FieldError, match=r"discount was 1.0 and is 0.5"):
        check_resume(before, changed(lambda d: d["magrpo"].update(discount=0.5)))


@pytest.mark.parametrize("field", ["num_train_epochs", "max_steps"])
def test_a_longer_run_is_told_that_its_learning_rate_may_jump(field: str) -> None:
    (note,) = check_resume(description(), changed(lambda d: d["magrpo"].update({field: 40})))
    for word in ("lr_total_steps", "linear", "cosine", "warmup_ratio", "jump"):
        assert word in note
