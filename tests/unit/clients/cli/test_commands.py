"""The command line: quick, lazily loaded, and plain about what is wrong."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from antiphon.clients.cli import app, lazy
from antiphon.clients.cli.summary import summary
from antiphon.clients.errors import CallError
from antiphon.clients.types import FieldError


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture
def portion(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Adds a command `extra` whose module `plugin.learner.cli` a test writes."""
    package = tmp_path / "plugin" / "learner"
    package.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    point = EntryPoint("extra", "plugin.learner.cli:command", "antiphon.commands")
    monkeypatch.setattr(
        lazy, "entry_points", lambda group: [point] if group == "antiphon.commands" else []
    )

    def write(source: str) -> None:
        for name in [name for name in sys.modules if name.startswith("plugin")]:
            monkeypatch.delitem(sys.modules, name)
        (package / "cli.py").write_text(source)

    return write


def test_help_lists_every_command_without_importing_what_it_needs() -> None:
    code = (
        "import sys\n"
        "from antiphon.clients.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformers', 'datasets', 'antiphon.learner', 'antiphon.services'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    for command in ("train", "serve", "check", "watch"):
        assert command in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [(), ("serve",), ("check",), ("check", "reward"), ("check", "transition"), ("watch",)],
)
def test_help_teaches_by_example(arguments: tuple[str, ...]) -> None:
    for flag in ("--help", "-h"):
        code, output = run(*arguments, flag)
        assert code == 0
        example = " ".join(("antiphon", *arguments))
        # A line of its own, not filled into a paragraph.
        assert any(line.strip().startswith(f"{example} ") for line in output.splitlines())
        assert "\b" not in output


def test_serve_lists_the_services_and_what_they_do() -> None:
    _, output = run("serve", "--help")
    for service in ("generation", "reward", "transition"):
        line = next(line for line in output.splitlines() if line.split()[:1] == [service])
        assert len(line.split()) > 2


def test_the_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    assert run("--version") == (0, f"antiphon {version('antiphon')}\n")


def test_an_unknown_command_is_an_error_of_usage() -> None:
    code, output = run("trian")
    assert code == 2
    assert "trian" in output


def test_a_function_is_a_command_with_its_own_help(portion: Any) -> None:
    portion(
        'def command(name: str) -> None:\n    """Say hello.\n\n    Example:\n'
        '      antiphon extra you\n    """\n    print("hello", name)\n'
    )
    assert run("extra", "you") == (0, "hello you\n")
    assert "\n    antiphon extra you\n" in run("extra", "--help")[1]
    listed = next(line for line in run("--help")[1].splitlines() if "extra" in line)
    assert "Say hello." in listed


def test_a_typer_app_is_a_group_of_commands(portion: Any) -> None:
    portion(
        '"""Do things."""\nimport typer\ncommand = typer.Typer()\n'
        "@command.callback()\ndef main() -> None:\n    pass\n"
        "@command.command()\ndef one() -> None:\n    print(1)\n"
    )
    assert run("extra", "one") == (0, "1\n")
    listed = next(line for line in run("--help")[1].splitlines() if "extra" in line)
    assert "Do things." in listed


@pytest.mark.parametrize(
    "source",
    [
        "import torch_is_not_here\n",
        "def command() -> None:\n    import torch_is_not_here\n",
    ],
)
def test_a_missing_extra_is_one_line_that_says_what_to_install(
    source: str, portion: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the import fails when the command is loaded or while it runs."""
    portion(source)
    monkeypatch.setattr(
        lazy,
        "requires",
        lambda _: [
            "torch-is-not-here>=2.7; extra == 'generation'",
            "torch-is-not-here>=2.7; extra == 'learner'",
            "other; extra == 'dev'",
        ],
    )
    code, output = run("extra")
    assert code == 1
    assert output.count("\n") == 1
    assert output.startswith("antiphon: antiphon extra needs torch_is_not_here")
    assert "pip install 'antiphon[learner]'" in output


def test_a_missing_module_that_no_extra_brings_is_not_hidden(portion: Any) -> None:
    """U2's kind: the user's own import error is theirs to see."""
    portion("def command() -> None:\n    import module_of_the_user\n")
    with pytest.raises(ModuleNotFoundError, match="module_of_the_user"):
        run("extra")


@pytest.mark.parametrize(
    "error",
    [
        FieldError("magrpo.num_turns", 0, "at least 1"),
        CallError(grpc.StatusCode.UNAVAILABLE, "away", address="host:1", rpc="GetRun"),
    ],
)
def test_what_a_user_can_act_on_is_one_line(
    error: Exception, portion: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command() -> None:
        raise error

    portion("command = None\n")
    import plugin.learner.cli as module  # type: ignore[import-not-found]

    monkeypatch.setattr(module, "command", command)
    code, output = run("extra")
    assert (code, output) == (1, f"antiphon: {error}\n")


def test_an_interrupt_has_the_exit_code_of_one(portion: Any) -> None:
    """S13: scripts tell Ctrl-C from a failure."""
    portion("def command() -> None:\n    raise KeyboardInterrupt\n")
    assert run("extra")[0] == 130


def test_an_exit_code_of_a_command_is_kept(portion: Any) -> None:
    portion("import typer\ndef command() -> None:\n    raise typer.Exit(143)\n")
    assert run("extra")[0] == 143


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("antiphon.clients.cli.watch:watch", "Follow a run while it trains, until it ends."),
        ("antiphon.clients.cli.check:app", "Check whether a reward"),
        ("no.such.module:thing", ""),
        ("json:no_such_thing", "JSON (JavaScript Object Notation)"),
    ],
)
def test_a_summary_is_read_from_the_source(target: str, text: str) -> None:
    assert summary(target).startswith(text)
    assert text or not summary(target)
