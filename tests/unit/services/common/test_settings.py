"""Settings from file, environment and command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field

from antiphon.clients.types import FieldError
from antiphon.services.common.settings import asked_for, check_unknown, load_settings


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    timeout: float = 1.0
    names: list[str] = []


class Outer(BaseModel):
    seed: int = Field(ge=0)
    title: str = ""
    reward: Inner = Inner()
    extra: Inner | None = None
    agents: list[Inner] = []
    by_name: dict[str, float] = {}


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text('seed = 1\n[reward]\ntimeout = 2\n[[agents]]\nnames = ["x"]\n[[agents]]\n')
    return path


def test_later_sources_win(toml: Path) -> None:
    environ = {"ANTIPHON_SEED": "2", "ANTIPHON_REWARD__TIMEOUT": "3", "OTHER": "x"}
    assert load_settings(Outer, file=toml).reward.timeout == 2
    both = load_settings(Outer, file=toml, environ=environ)
    assert (both.seed, both.reward.timeout) == (2, 3)
    all_three = load_settings(Outer, file=toml, environ=environ, overrides=["reward.timeout=4"])
    assert (all_three.seed, all_three.reward.timeout) == (2, 4)


def test_one_setting_can_be_asked_for_whatever_is_wrong_with_the_others(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text('nonsense = 1\n[reward]\ntimeout = "soon"\n')
    environ = {"ANTIPHON_REWARD__TIMEOUT": "3", "ANTIPHON_WHAT": "x"}
    assert asked_for("reward.timeout", file=broken) == "soon"
    assert asked_for("reward.timeout", file=broken, environ=environ) == 3
    overrides = ["nonsense", "reward.timeout=4", "reward.timeout=5"]
    assert asked_for("reward.timeout", file=broken, environ=environ, overrides=overrides) == 5
    assert asked_for("nonsense.timeout", file=broken) is None
    assert asked_for("reward.timeout", file=tmp_path / "missing.toml") is None


def test_values_are_toml_or_else_text() -> None:
    overrides = ["seed=3", "title=hello world", 'reward.names=["a", "b"]', "by_name.x=1e-3"]
    settings = load_settings(Outer, overrides=overrides)
    assert settings.title == "hello world"
    assert settings.reward.names == ["a", "b"]
    assert settings.by_name == {"x": 0.001}


def test_the_word_none_is_none_wherever_there_may_be_none() -> None:
    class Run(BaseModel):
        outer: Outer
        several: list[Outer] = []
        name: str | None = "run"
        limit: int | None = 3
        word: str = ""

    overrides = ["name=none", "limit=none", "word=none", "outer.seed=1", "outer.extra=none"]
    run = load_settings(Run, overrides=[*overrides, 'several=[{seed = 2, extra = "none"}]'])
    assert (run.name, run.limit, run.word) == (None, None, "none")
    assert (run.outer.extra, run.several[0].extra) == (None, None)


def test_entries_of_a_list_go_by_number(toml: Path) -> None:
    settings = load_settings(
        Outer,
        file=toml,
        overrides=["agents.1.timeout=5"],
        environ={"ANTIPHON_AGENTS__0__TIMEOUT": "6"},
    )
    assert [agent.timeout for agent in settings.agents] == [6, 5]
    with pytest.raises(FieldError, match="list of 2"):
        load_settings(Outer, file=toml, overrides=["agents.2.timeout=5"])


@pytest.mark.parametrize(
    ("override", "named", "nearest"),
    [
        ("sede=1", "sede", "'seed'"),
        ("reward.timout=1", "reward.timout", "'timeout'"),
        ("extra.nmes=1", "extra.nmes", "'names'"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(
    toml: Path, override: str, named: str, nearest: str
) -> None:
    with pytest.raises(FieldError) as raised:
        load_settings(Outer, file=toml, overrides=[override])
    assert raised.value.field == named
    assert nearest in str(raised.value)


@pytest.mark.parametrize(
    ("override", "home"),
    [
        ("timeout=1", "'reward.timeout' or 'extra.timeout' or 'agents.0.timeout'"),
        ("reward.seed=1", "'seed'"),
    ],
)
def test_a_key_in_the_wrong_place_is_told_its_own(toml: Path, override: str, home: str) -> None:
    with pytest.raises(FieldError) as raised:
        load_settings(Outer, file=toml, overrides=[override])
    assert raised.value.wanted == home


def test_unknown_keys_are_found_inside_lists_and_in_the_environment(toml: Path) -> None:
    with pytest.raises(FieldError, match=r"agents\.1\.tiemout.*'timeout'"):
        check_unknown(Outer, {"agents": [{}, {"tiemout": 1}]})
    with pytest.raises(FieldError, match=r"ANTIPHON_SEDE.*'seed'"):
        load_settings(Outer, file=toml, environ={"ANTIPHON_SEDE": "1"})


def test_variables_that_kubernetes_adds_are_left_alone(toml: Path) -> None:
    environ = {
        "ANTIPHON_LEARNER_SERVICE_HOST": "10.0.0.1",
        "ANTIPHON_LEARNER_SERVICE_PORT_GRPC": "50051",
        "ANTIPHON_LEARNER_PORT": "tcp://10.0.0.1:50051",
        "ANTIPHON_LEARNER_PORT_50051_TCP_ADDR": "10.0.0.1",
    }
    assert load_settings(Outer, file=toml, environ=environ).seed == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["seed=-1"], "seed: got -1"),
        (["seed=x"], "seed: got 'x', wanted a valid integer"),
        ([], "seed: got nothing"),
        (["seed=1", "reward.timeout=soon"], r"reward\.timeout: got 'soon'"),
        (["seed"], "key=value"),
        (["seed=1", "seed.x=2"], "a table there"),
    ],
)
def test_a_value_that_does_not_fit_is_named(overrides: list[str], message: str) -> None:
    with pytest.raises(FieldError, match=message):
        load_settings(Outer, overrides=overrides)


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    with pytest.raises(FieldError, match=r"run\.toml"):
        load_settings(Outer, file=path)
    path.write_text("seed = = 1")
    with pytest.raises(FieldError, match=r"run\.toml.*TOML"):
        load_settings(Outer, file=path)
