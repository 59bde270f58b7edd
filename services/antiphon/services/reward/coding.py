"""A ready reward for tasks in which the agents write Python together.

    antiphon serve reward antiphon.services.reward.coding:score

The last agent writes the function that the task asks for, the others functions that it may use.
A dataset item has an `entry_point`, the function's name, and `tests`, assert statements about it
(`antiphon.services.reward.sandbox.tests.read_tests`). The value of a joint action is

    0.1 * (it is Python) + 0.2 * (it defines the function) + 0.7 * (share of tests that pass)

and its components are `syntax`, `defined`, `tests` and, with several agents, `helped`: whether the
last agent's code uses a function that another agent's defines. What the transition functions of
`antiphon.services.transition.coding` tell the agents is in its info.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from os import cpu_count
from typing import Any

from antiphon.clients.types import FieldError
from antiphon.services.reward.sandbox import Outcome, Sandbox

SYNTAX_WEIGHT, DEFINED_WEIGHT, TESTS_WEIGHT = 0.1, 0.2, 0.7
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


def score(*completions: list[str], batch_items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Score joint answers, each in a sandbox that holds every protection.

    Args:
        completions: Each agent's completions, the main agent's last; one per joint action.
        batch_items: The task of each joint action: `entry_point` and `tests`.

    Raises:
        FieldError: A task has no `entry_point` or no `tests`, or a test is no assert statement.
        SandboxError: This machine does not hold a protection.
    """
    return _default().score(*completions, batch_items=batch_items)


class CodingReward:
    """The reward with a sandbox of your own.

    Args:
        sandbox: Runs the answers; None for the default.
        at_once: Answers that are run at the same time; None for one per core.
    """

    def __init__(self, sandbox: Sandbox | None = None, *, at_once: int | None = None) -> None:
        self._sandbox = sandbox or Sandbox()
        self._sandbox.check()
        self._pool = ThreadPoolExecutor(at_once or cpu_count() or 1)

    def score(
        self, *completions: list[str], batch_items: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """As the function `score`."""
        answers = [
            tuple(extract_code(c) for c in joint) for joint in zip(*completions, strict=True)
        ]
        return list(self._pool.map(self._one, answers, batch_items))

    def _one(self, answers: tuple[str, ...], item: Mapping[str, Any]) -> dict[str, Any]:
        entry_point, tests = _asked(item)
        outcome = self._sandbox.run(
            "\n\n".join(answers), [f"assert callable({entry_point})", *tests]
        )
        return _entry(outcome, answers)


def extract_code(completion: str) -> str:
    """The code of a completion: its fenced blocks, or all of it where it has none."""
    blocks = _FENCE.findall(completion)
    return "\n\n".join(blocks) if blocks else completion


@cache
def _default() -> CodingReward:
    return CodingReward()


def _asked(item: Mapping[str, Any]) -> tuple[str, list[str]]:
    entry_point, tests = item.get("entry_point"), item.get("tests")
    if not isinstance(entry_point, str) or not entry_point.isidentifier():
        raise FieldError(
            "entry_point", repr(entry_point), "the name of the function that is asked for"
        )
    if not isinstance(tests, list) or not tests:
        raise FieldError("tests", repr(tests)[:80], "a list of assert statements, one at least")
    return entry_point, tests


def _entry(outcome: Outcome, answers: tuple[str, ...]) -> dict[str, Any]:
    defined, tests = outcome.tests[0].passed, outcome.tests[1:]
    passed = sum(test.passed for test in tests)
    components = {
        "syntax": float(outcome.syntax_error is None),
        "defined": float(defined),
        "tests": passed / len(tests),
    }
    value = (
        SYNTAX_WEIGHT * components["syntax"]
        + DEFINED_WEIGHT * components["defined"]
        + TESTS_WEIGHT * components["tests"]
    )
    if len(answers) > 1:
        components["helped"] = float(_uses(answers[-1], _defined("\n\n".join(answers[:-1]))))
    syntax = outcome.syntax_error
    info = {
        "syntax_error": None
        if syntax is None
        else {"line": syntax.line, "column": syntax.column, "message": syntax.message},
        "error": outcome.error,
        "defined": defined,
        "passed": passed,
        "total": len(tests),
        "tests": [{"test": t.test, "passed": t.passed, "error": t.error} for t in tests],
    }
    return {"value": value, "components": components, "info": info}


def _defined(code: str) -> set[str]:
    return {
        node.name
        for node in ast.walk(_parsed(code))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }


def _uses(code: str, names: set[str]) -> bool:
    own = _defined(code)
    used = {node.id for node in ast.walk(_parsed(code)) if isinstance(node, ast.Name)}
    return bool(used & (names - own))


def _parsed(code: str) -> ast.AST:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return ast.Module([], [])
