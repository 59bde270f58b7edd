"""Tests of an answer: what is asked of the code, and what came of it."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.clients.types import FieldError

MOST_CHARACTERS = 10_000
"""Of a value's `repr`; a longer value is never equal to what is expected."""


@dataclass(frozen=True)
class Test:
    """One test: an expression over the names that the code defines.

    Attributes:
        text: As it was given.
        expression: What is evaluated beside the code.
        expected: The `repr` of what it must come to, which the code never sees; None where the
            expression itself must be true.
    """

    __test__ = False  # not one of pytest's

    text: str
    expression: str
    expected: str | None


@dataclass(frozen=True)
class TestResult:
    """What came of a test. `error` is empty where it passed, else says what happened."""

    __test__ = False

    test: str
    passed: bool
    error: str


@dataclass(frozen=True)
class SyntaxProblem:
    """Where the code is no Python; lines and columns count from 1."""

    line: int
    column: int
    message: str


@dataclass(frozen=True)
class Outcome:
    """What came of running code with its tests.

    Attributes:
        syntax_error: Where the code is no Python, None where it is.
        error: What ended the code before its tests, or in the middle of them; "" for nothing.
        tests: One per test, in order; those that were not reached have failed.
    """

    syntax_error: SyntaxProblem | None
    error: str
    tests: tuple[TestResult, ...]

    @property
    def passed(self) -> int:
        """Number of tests that passed."""
        return sum(result.passed for result in self.tests)

    @property
    def all_passed(self) -> bool:
        """Whether there are tests and all passed."""
        return bool(self.tests) and self.passed == len(self.tests)


def read_tests(tests: Sequence[str], field: str = "tests") -> list[Test]:
    """Read tests written as assert statements, ``assert double(2) == 4``.

    Of ``assert EXPRESSION == LITERAL`` the code sees the expression only: the literal is compared
    outside, so that no answer can find out or fake it. Of any other assertion, such as
    ``assert abs(half(1) - 0.5) < 1e-9``, the whole expression is evaluated beside the code: code
    that means to can fake it.

    Raises:
        FieldError: An entry is no assert statement.
    """
    if isinstance(tests, str) or not all(isinstance(test, str) for test in tests):
        raise FieldError(field, repr(tests)[:80], "a list of assert statements")
    return [_read(test, f"{field}[{number}]") for number, test in enumerate(tests)]


def outcome_of(tests: Sequence[Test], events: Sequence[Mapping[str, Any]], ending: str) -> Outcome:
    """What the process's events come to.

    Args:
        tests: As asked.
        events: What the process told, in order (`inside`).
        ending: What ended it early, "" where it ended by itself.
    """
    syntax = next((SyntaxProblem(*event["syntax"]) for event in events if "syntax" in event), None)
    told = next(
        (str(event["error"]) for event in events if "error" in event and "test" not in event), ""
    )
    by_number = {event["test"]: event for event in events if "test" in event}
    error = told or ending
    unreached = "the code is no Python" if syntax is not None else error or "was not reached"
    results = [_result(test, by_number.get(n), unreached) for n, test in enumerate(tests)]
    if len(by_number) < len(tests) and not syntax and not error:
        error = "ended before its last test"
    return Outcome(syntax, error, tuple(results))


def _read(test: str, field: str) -> Test:
    try:
        statements = ast.parse(test.strip()).body
    except (SyntaxError, ValueError) as error:
        raise FieldError(field, repr(test)[:80], f"an assert statement ({error})") from error
    if len(statements) != 1 or not isinstance(statements[0], ast.Assert):
        raise FieldError(field, repr(test)[:80], "one assert statement")
    asked = statements[0].test
    if isinstance(asked, ast.Compare) and [type(op) for op in asked.ops] == [ast.Eq]:
        try:
            expected = ast.literal_eval(asked.comparators[0])
        except ValueError:
            pass  # compared with something else than a literal
        else:
            return Test(test, ast.unparse(asked.left), repr(expected))
    return Test(test, f"bool({ast.unparse(asked)})", None)


def _result(test: Test, event: Mapping[str, Any] | None, unreached: str) -> TestResult:
    if event is None:
        return TestResult(test.text, False, unreached)
    if "error" in event:
        return TestResult(test.text, False, str(event["error"]))
    value = str(event["value"])
    if test.expected is None:
        return TestResult(test.text, value == "True", "" if value == "True" else "is not true")
    passed = _equal(value, test.expected)
    return TestResult(
        test.text, passed, "" if passed else f"got {_short(value)}, wanted {test.expected}"
    )


def _equal(value: str, expected: str) -> bool:
    if value == expected:
        return True
    if len(value) > MOST_CHARACTERS:
        return False
    try:
        return bool(ast.literal_eval(value) == ast.literal_eval(expected))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False  # no literal, so not the one that is expected


def _short(value: str) -> str:
    return value if len(value) <= 200 else f"{value[:200]}..."
