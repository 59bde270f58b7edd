"""Reads what the process told, which the code under test can write to as well.

Whatever leaves this module is of its type, no longer than it may be, and text that can be encoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MOST_BYTES = 1 << 20
"""Of a report; a process that tells more is ended."""
MOST_VALUE_CHARACTERS = 10_000
"""Of a value's `repr`; a longer value is never equal to what is expected."""
MOST_ERROR_CHARACTERS = 2_000
_MOST_LINES = 1 << 31


@dataclass(frozen=True)
class SyntaxProblem:
    """Where the code is no Python; lines and columns count from 1 (0: Python does not say)."""

    line: int
    column: int
    message: str


@dataclass(frozen=True)
class Answer:
    """What a test's expression came to: the `repr` of its value, or else what it raised."""

    value: str | None
    error: str = ""


@dataclass(frozen=True)
class Report:
    """What the process told.

    Attributes:
        held: Names of the protections that held, where they were tried.
        syntax: Where the code is no Python, None where it is.
        error: What the code raised as it was loaded, "" for nothing.
        answers: By the test's number.
    """

    held: frozenset[str] | None
    syntax: SyntaxProblem | None
    error: str
    answers: Mapping[int, Answer]


def read_report(told: bytes, tests: int) -> Report:
    """Read the report of a process that had so many tests.

    Lines of another form than `inside` writes are passed over, and of several answers to a test
    the first counts. Where the code is no Python is said before any of it runs: in the first line
    or not at all.
    """
    first, *rest = _events(told) or [{}]
    held = first.get("held")
    error = ""
    answers: dict[int, Answer] = {}
    for event in rest:
        number, answer = event.get("test"), _answer(event)
        if answer is None:
            continue
        if "test" not in event:
            error = error or answer.error
        elif type(number) is int and 0 <= number < tests:
            answers.setdefault(number, answer)
    return Report(
        held=frozenset(map(str, held)) if isinstance(held, list) else None,
        syntax=_syntax(first.get("syntax")),
        error=error,
        answers=answers,
    )


def _events(told: bytes) -> list[dict[str, Any]]:
    return [event for event in _parsed(told) if isinstance(event, dict)]


def _parsed(told: bytes) -> Iterator[object]:
    for line in told.split(b"\n"):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


def _syntax(place: object) -> SyntaxProblem | None:
    if not isinstance(place, list) or [type(part) for part in place] != [int, int, str]:
        return None
    line, column = (min(max(part, 0), _MOST_LINES) for part in place[:2])
    return SyntaxProblem(line, column, _text(place[2], MOST_ERROR_CHARACTERS))


def _answer(event: Mapping[str, Any]) -> Answer | None:
    value, error = event.get("value"), event.get("error")
    if isinstance(error, str):
        return Answer(None, _text(error, MOST_ERROR_CHARACTERS))
    # One character more than there may be, so that a longer value is seen to be longer.
    return Answer(_text(value, MOST_VALUE_CHARACTERS + 1)) if isinstance(value, str) else None


def _text(told: str, most: int) -> str:
    return told[:most].encode("utf-8", "backslashreplace").decode()[:most]
