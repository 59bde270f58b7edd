"""Ready feedback for the tasks of `antiphon.services.reward.coding`, in four levels.

    antiphon serve transition antiphon.services.transition.coding:errors

`passed` says whether all tests passed; `counts` how many did; `errors` what happened in each that
failed; `syntax` where the code is no Python, and nothing of the tests. Each begins with the agent's
first prompt and its last answer; a chat goes on as a chat. Where all tests pass the branch ends;
where the score is missing the answer could not be tested, and that is what is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.services.common.user_functions import END, End

_MOST_ERRORS = 5
_NOT_PASSED = "Together with the other answers it does not pass the tests."
_UNTESTED = "It could not be tested."  # Its score is missing.
_AGAIN = "Write a better one:"


def passed(
    prompt_history_per_agent: list[list[Any]],
    agent_completions: list[str],
    info: dict[str, Any] | None,
) -> list[Any] | End:
    """Whether all tests passed."""
    return _next(prompt_history_per_agent, agent_completions, info, lambda _: _NOT_PASSED)


def counts(
    prompt_history_per_agent: list[list[Any]],
    agent_completions: list[str],
    info: dict[str, Any] | None,
) -> list[Any] | End:
    """How many tests passed."""
    return _next(prompt_history_per_agent, agent_completions, info, _how_many)


def errors(
    prompt_history_per_agent: list[list[Any]],
    agent_completions: list[str],
    info: dict[str, Any] | None,
) -> list[Any] | End:
    """How many tests passed, and what happened in those that did not."""
    return _next(prompt_history_per_agent, agent_completions, info, _what_happened)


def syntax(
    prompt_history_per_agent: list[list[Any]],
    agent_completions: list[str],
    info: dict[str, Any] | None,
) -> list[Any] | End:
    """Where the code is no Python."""
    return _next(prompt_history_per_agent, agent_completions, info, _where)


def _next(
    prompts: Sequence[Sequence[Any]],
    completions: Sequence[str],
    info: Mapping[str, Any] | None,
    told: Callable[[Mapping[str, Any]], str],
) -> list[Any] | End:
    if info is not None and info["passed"] == info["total"]:
        return END("all tests pass")
    feedback = _UNTESTED if info is None else told(info)
    return [
        _asked_again(history[0], completion, feedback)
        for history, completion in zip(prompts, completions, strict=True)
    ]


def _asked_again(first: Any, completion: str, feedback: str) -> Any:
    if isinstance(first, str):
        return f"{first}\n\nYour last answer was:\n{completion}\n\n{feedback} {_AGAIN}\n"
    return [
        *first,
        {"role": "assistant", "content": completion},
        {"role": "user", "content": f"{feedback} {_AGAIN}"},
    ]


def _how_many(info: Mapping[str, Any]) -> str:
    return f"Together with the other answers it passes {info['passed']} of {info['total']} tests."


def _what_happened(info: Mapping[str, Any]) -> str:
    if info["syntax_error"] is not None:
        return _where(info)
    failed = [test for test in info["tests"] if not test["passed"]]
    lines = [f"- {test['test']}: {test['error']}" for test in failed[:_MOST_ERRORS]]
    if len(failed) > _MOST_ERRORS:
        lines.append(f"- and {len(failed) - _MOST_ERRORS} more")
    return "\n".join([_how_many(info), *lines, ""])


def _where(info: Mapping[str, Any]) -> str:
    wrong = info["syntax_error"]
    if wrong is None:
        return "It is Python, but it does not do what is asked."
    if not wrong["line"]:
        return f"It is no Python: {wrong['message']}."
    return f"Line {wrong['line']}, column {wrong['column']} is no Python: {wrong['message']}."
