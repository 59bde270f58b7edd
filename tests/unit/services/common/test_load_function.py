"""Finding a user's function by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.services.common.errors import StartError
from antiphon.services.common.user_functions import load_function


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current directory, which is not on the path yet."""
    name = "a_users_module"
    (tmp_path / f"{name}.py").write_text(
        "class Judge:\n    @staticmethod\n    def score(a):\n        return [1.0]\n"
        "def reward(a):\n    return [0.5]\nnumber = 3\n"
    )
    (tmp_path / "needs_more.py").write_text("import a_module_that_is_nowhere\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    yield name
    sys.modules.pop(name, None)


def test_a_module_of_the_current_directory_is_found(module: str) -> None:
    assert load_function(f"{module}:reward")(["x"]) == [0.5]
    assert load_function(f"{module}:Judge.score")(["x"]) == [1.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a_users_module:rewrd", "did you mean 'reward'"),
        ("a_users_module:number", "is a int, wanted a function"),
        ("a_users_modul:reward", "no module 'a_users_modul'"),
        ("a_users_module.inner:reward", "no module 'a_users_module.inner'"),
        ("a_users_module", "write module:function"),
        ("a_users_module.py:reward", "for example a_users_module:reward"),
        (":reward", "write module:function"),
    ],
)
def test_what_cannot_be_found_is_said_in_one_line(module: str, name: str, message: str) -> None:
    with pytest.raises(StartError, match=message):
        load_function(name)


def test_a_module_that_lacks_an_import_says_which_itself(module: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_nowhere"):
        load_function("needs_more:reward")
