"""Documents say what is so: generated pages are fresh, links lead somewhere, commands exist."""

import inspect
import re
import shlex
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.processes import command, run

from antiphon.learner import MAGRPOTrainer
from antiphon.learner.config.run_file import load_run_config

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "docs/*.md",
        "docs/runbooks/*.md",
        "examples/*.md",
        "examples/reward_service_node/*.md",
    )
    for path in ROOT.glob(pattern)
)
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Subcommands by name; everything else after `antiphon` is an argument of one of these.
COMMANDS = {"train", "watch", "serve", "check", "report", "rollouts", "checkpoint", "evaluate"}
COMMANDS |= {"doctor", "generation", "reward", "transition"}


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def console_lines(page: Path) -> list[str]:
    """Commands of a page's console blocks."""
    blocks = [text for language, text in FENCE.findall(page.read_text()) if language == "console"]
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@cache
def help_of(*subcommand: str) -> str:
    return run(command(*subcommand, "--help"))


def test_the_generated_pages_are_what_the_code_says() -> None:
    run([sys.executable, str(ROOT / "docs" / "generate.py"), "--check"])


def test_every_argument_of_the_trainer_is_in_its_table() -> None:
    page = (ROOT / "docs" / "coming_from_comlrl.md").read_text()
    section = page.partition("## The trainer in a script\n")[2].partition("\n## ")[0]
    arguments = inspect.signature(MAGRPOTrainer).parameters
    assert [name for name in arguments if f"`{name}`" not in section] == []


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), f"{name}: {link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{name}: {link} has no such heading"


@pytest.mark.parametrize("name", NAMES)
def test_every_antiphon_command_and_option_exists(name: str) -> None:
    for line in console_lines(ROOT / name):
        words = shlex.split(line, comments=True)
        if Path(words[0]).name != "antiphon":
            continue
        split = next((i for i, word in enumerate(words[1:], 1) if word not in COMMANDS), len(words))
        subcommand = words[1:split][:2]
        assert subcommand, f"{name}: `{line}`: no command {words[1]}"
        text = help_of(*subcommand)
        for option in [word.partition("=")[0] for word in words if word.startswith("--")]:
            assert option in text, f"{name}: `{line}`: no option {option} in:\n{text}"


@pytest.mark.parametrize("name", NAMES)
def test_run_files_take_what_a_command_sets(name: str) -> None:
    for line in console_lines(ROOT / name):
        words = shlex.split(line, comments=True)
        if Path(words[0]).name != "antiphon" or words[1] != "train" or words[2] == "run.toml":
            continue
        overrides = [after for word, after in pairwise(words) if word == "--set"]
        load_run_config(ROOT / words[2], overrides=overrides)


@pytest.mark.parametrize("name", NAMES)
def test_every_file_and_make_target_in_a_command_exists(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in console_lines(ROOT / name):
        words = shlex.split(line, comments=True)
        if words[0] == "make":
            named = {word for word in words[1:] if "=" not in word}
            assert named <= targets, f"{name}: `{line}`"
        for word in words:
            if word.startswith("examples/"):
                assert (ROOT / word).exists(), f"{name}: `{line}`"


def test_the_pages_hold_commands_to_check() -> None:
    lines = [line for page in PAGES for line in console_lines(page)]
    assert sum(line.startswith("antiphon") for line in lines) >= 5
