"""docs/security.md: each promise names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
SECTION = PAGE.partition("## What is promised")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| ([^|]+) \| (`tests/.*`) \|$", SECTION, re.MULTILINE)
NAMED = [name for _, names in ROWS for name in re.findall(r"`(tests/[^`]+)`", names)]


def names_in(file: Path) -> set[str]:
    """Names of the tests in a file."""
    tree = ast.parse(file.read_text())
    functions = (n for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


def test_every_promise_names_a_test() -> None:
    promises = [line for line in SECTION.splitlines() if line.startswith("| ")]
    assert len(ROWS) == len(promises) - 1 >= 20, "the heading, and rows that all name a test"


def test_the_tests_that_prove_promises_exist() -> None:
    for name in NAMED:
        path, _, test = name.partition("::")
        file = ROOT / path
        assert file.is_file(), f"{name}: no such file"
        assert names_in(file), f"{name}: no test in it"
        assert not test or test in names_in(file), f"{name}: no such test"
