"""Tests of an answer: what is asked of the code, and what came of it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.clients.types import FieldError
from antiphon.services.reward.sandbox.report import (
    MOST_VALUE_CHARACTERS,
    Answer,
    Report,
    SyntaxProblem,
)


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


def outcome_of(tests: Sequence[Test], report: Report, ending: str) -> Outcome:
    """What the process's report comes to.

    Args:
        tests: As asked.
        report: What the process told.
        ending: What ended it early, "" where it ended by itself.
    """
    if report.syntax is not None:
        no_python = Answer(None, "the code is no Python")
        return Outcome(report.syntax, "", tuple(_result(test, no_python) for test in tests))
    answers = [report.answers.get(number) for number in range(len(tests))]
    error = report.error or ending or ("ended before its last test" if None in answers else "")
    running = answers.index(None) if None in answers else len(tests)
    results = []
    for number, (test, answer) in enumerate(zip(tests, answers, strict=True)):
        if answer is None:
            met_its_end = report.error or (ending and number == running)
            answer = Answer(None, error if met_its_end else f"was not reached: {error}")
        results.append(_result(test, answer))
    return Outcome(None, error, tuple(results))


def _read(test: str, field: str) -> Test:
    try:
        statements = ast.parse(test.strip()).body
        if len(statements) == 1 and isinstance(statements[0], ast.Assert):
            return _asked(test, statements[0].test)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        wanted = f"an assert statement ({str(error) or type(error).__name__})"
        raise FieldError(field, repr(test)[:80], wanted) from error
    raise FieldError(field, repr(test)[:80], "one assert statement")


def _asked(test: str, asked: ast.expr) -> Test:
    if isinstance(asked, ast.Compare) and [type(op) for op in asked.ops] == [ast.Eq]:
        try:
            expected = ast.literal_eval(asked.comparators[0])
        except ValueError:
            pass  # compared with something else than a literal
        else:
            return Test(test, ast.unparse(asked.left), repr(expected))
    return Test(test, f"bool({ast.unparse(asked)})", None)


def _result(test: Test, answer: Answer) -> TestResult:
    value = answer.value
    if value is None:
        return TestResult(test.text, False, answer.error)
    if test.expected is None:
        return TestResult(test.text, value == "True", "" if value == "True" else "is not true")
    passed = _equal(value, test.expected)
    return TestResult(
        test.text, passed, "" if passed else f"got {_short(value)}, wanted {test.expected}"
    )


def _equal(value: str, expected: str) -> bool:
    if len(value) > MOST_VALUE_CHARACTERS:
        return False
    if value == expected:
        return True
    try:
        return bool(ast.literal_eval(value) == ast.literal_eval(expected))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False  # no literal, so not the one that is expected


def _short(value: str) -> str:
    return value if len(value) <= 200 else f"{value[:200]}..."
