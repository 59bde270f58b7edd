"""The ready reward for coding tasks, and the feedback that goes with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.clients.types import FieldError
from antiphon.services.common.user_functions import End
from antiphon.services.reward.coding import CodingReward, extract_code
from antiphon.services.reward.sandbox import Limits, Sandbox
from antiphon.services.transition import coding as feedback

# ruff: noqa: E501 - a solution a line
ROOT = Path(__file__).parents[4]
TASK = {
    "prompt": "Write `area`.",
    "entry_point": "area",
    "tests": ["assert area(2) == 4", "assert area(3) == 9", "assert area(0) == 0"],
}
SQUARE = "def aux(x):\n    return x * x"
SOLUTIONS = {
    "sum_of_squares": "lambda xs: sum(x * x for x in xs)",
    "count_vowels": "lambda t: sum(c in 'aeiou' for c in t.lower())",
    "is_palindrome": "lambda t: (s := t.lower().replace(' ', '')) == s[::-1]",
    "largest_gap": "lambda xs: max((b - a for a, b in zip(sorted(xs), sorted(xs)[1:])), default=0)",
    "word_lengths": "lambda t: {w: len(w) for w in t.split()}",
    "second_largest": "lambda xs: sorted(set(xs))[-2] if len(set(xs)) > 1 else None",
    "digit_sum": "lambda n: sum(map(int, str(abs(n))))",
    "flatten": "lambda xs: [x for part in xs for x in part]",
    "running_total": "lambda xs: [sum(xs[:n + 1]) for n in range(len(xs))]",
    "most_common_letter": "lambda w: min(w, key=lambda c: (-w.count(c), c))",
    "collatz_steps": "lambda n: 0 if n == 1 else 1 + collatz_steps(n // 2 if n % 2 == 0 else 3 * n + 1)",
    "chunks": "lambda xs, n: [xs[i:i + n] for i in range(0, len(xs), n)]",
    "common_prefix": "lambda a, b: __import__('os').path.commonprefix([a, b])",
    "to_binary": "lambda n: format(n, 'b')",
    "transpose": "lambda t: [list(column) for column in zip(*t)]",
    "balanced": "lambda t: (d := [t[:n].count('(') - t[:n].count(')') for n in range(len(t) + 1)])[-1] == 0 <= min(d)",
    "initials": "lambda name: ''.join(w[0].upper() + '.' for w in name.split())",
    "median": "__import__('statistics').median",
    "without_duplicates": "lambda xs: list(dict.fromkeys(xs))",
    "roman": "lambda n: next((s + roman(n - v) for v, s in [(1000, 'M'), (900, 'CM'), (500, 'D'), (400, 'CD'), (100, 'C'), (90, 'XC'), (50, 'L'), (40, 'XL'), (10, 'X'), (9, 'IX'), (5, 'V'), (4, 'IV'), (1, 'I')] if n >= v), '')",
}  # fmt: skip


@pytest.fixture(scope="module")
def reward() -> CodingReward:
    return CodingReward(Sandbox(Limits(seconds=1.0)), at_once=2)


def scored(reward: CodingReward, *completions: str, task: dict[str, Any] = TASK) -> dict[str, Any]:
    (entry,) = reward.score(*([completion] for completion in completions), batch_items=[task])
    return entry


@pytest.mark.parametrize(
    ("main", "value", "components"),
    [
        ("def area(x):\n    return aux(x)", 1.0, (1, 1, 1, 1)),
        ("def area(x):\n    return x * x", 1.0, (1, 1, 1, 0)),
        ("def area(x):\n    return 9 * aux(1)", 0.1 + 0.2 + 0.7 / 3, (1, 1, 1 / 3, 1)),
        ("def other(x):\n    return 4", 0.1, (1, 0, 0, 0)),
        ("area = 4", 0.1, (1, 0, 0, 0)),
        ("def area(x:", 0.0, (0, 0, 0, 0)),
        ("", 0.1, (1, 0, 0, 0)),
    ],
)
def test_values_and_components(
    reward: CodingReward, main: str, value: float, components: tuple[float, ...]
) -> None:
    entry = scored(reward, SQUARE, main)
    assert entry["value"] == pytest.approx(value)
    names = ("syntax", "defined", "tests", "helped")
    assert tuple(entry["components"][name] for name in names) == pytest.approx(components)


def test_joint_actions_of_a_batch_are_scored_in_their_order(reward: CodingReward) -> None:
    mains = [f"def area(x):\n    return x * x + {n % 2}" for n in range(6)]
    entries = reward.score([SQUARE] * 6, mains, batch_items=[TASK] * 6)
    assert [entry["info"]["passed"] for entry in entries] == [3, 0, 3, 0, 3, 0]


def test_code_is_taken_from_its_fences() -> None:
    assert (
        extract_code("Here:\n```python\nx = 1\n```\nand\n```\ny = 2\n```") == "x = 1\n\n\ny = 2\n"
    )
    assert extract_code("```py\nx = 1") == "x = 1"
    assert extract_code("x = 1") == "x = 1"


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ({"tests": ["assert f()"]}, "entry_point: got None"),
        ({"entry_point": "f(", "tests": ["assert f()"]}, r"entry_point: got 'f\('"),
        ({"entry_point": "f"}, "tests: got None"),
        ({"entry_point": "f", "tests": []}, "tests"),
        ({"entry_point": "f", "tests": ["f()"]}, r"tests\[1\]"),
    ],
)
def test_a_task_that_cannot_be_scored_is_named(
    reward: CodingReward, item: dict[str, Any], told: str
) -> None:
    with pytest.raises(FieldError, match=told):
        scored(reward, "x = 1", task=item)


def test_every_task_of_the_example_can_be_solved(reward: CodingReward) -> None:
    lines = (ROOT / "examples" / "coding_tasks.jsonl").read_text().splitlines()
    tasks = [json.loads(line) for line in lines]
    assert {task["entry_point"] for task in tasks} == set(SOLUTIONS)
    answers = [f"{t['entry_point']} = {SOLUTIONS[t['entry_point']]}" for t in tasks]
    entries = reward.score([""] * len(tasks), answers, batch_items=tasks)
    assert [e["info"]["tests"] for e in entries if e["value"] < 1] == []


@pytest.mark.parametrize(
    ("level", "told"),
    [
        (feedback.passed, "it does not pass the tests. Write"),
        (feedback.counts, "it passes 1 of 3 tests. Write"),
        (feedback.errors, "- assert area(3) == 9: got 4, wanted 9\n- assert area(0) == 0: got 4"),
        (feedback.syntax, "It is Python, but it does not do what is asked. Write"),
    ],
)
def test_each_level_of_feedback_tells_what_it_says(
    reward: CodingReward, level: Any, told: str
) -> None:
    info = scored(reward, SQUARE, "def area(x):\n    return 4")["info"]
    first, second = level([["A"], ["B", "later"]], ["a", "b"], info)
    assert first.startswith("A\n\nYour last answer was:\na\n\n")
    assert second.startswith("B\n\nYour last answer was:\nb\n\n")
    assert told in first
    assert told in second


@pytest.mark.parametrize("level", [feedback.errors, feedback.syntax])
def test_the_place_where_code_is_no_python_is_told(reward: CodingReward, level: Any) -> None:
    info = scored(reward, SQUARE, "def area(x:")["info"]
    (prompt, _) = level([["A"], ["B"]], ["a", "b"], info)
    assert "Line 4, column 9 is no Python: '(' was never closed." in prompt


@pytest.mark.parametrize("level", [feedback.errors, feedback.syntax])
def test_no_place_is_told_where_python_gives_none(level: Any) -> None:
    wrong = {"message": "too many statically nested blocks", "line": 0, "column": 0}
    info = {"passed": 0, "total": 3, "tests": [], "syntax_error": wrong}
    (prompt,) = level([["A"]], ["a"], info)
    assert "\n\nIt is no Python: too many statically nested blocks. Write" in prompt


@pytest.mark.parametrize(
    "level", [feedback.passed, feedback.counts, feedback.errors, feedback.syntax]
)
def test_an_answer_without_a_score_is_asked_for_again(level: Any) -> None:
    (prompt,) = level([["A"]], ["a"], None)
    assert prompt.startswith("A\n\nYour last answer was:\na\n\nIt could not be tested. Write")


def test_a_chat_goes_on_as_a_chat(reward: CodingReward) -> None:
    info = scored(reward, "def area(x):\n    return 0")["info"]
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    (asked,) = feedback.counts([[chat]], ["a"], info)
    assert asked[:3] == [*chat, {"role": "assistant", "content": "a"}]
    assert asked[3]["role"] == "user"
    assert "1 of 3 tests" in asked[3]["content"]


def test_the_branch_ends_where_all_tests_pass(reward: CodingReward) -> None:
    info = scored(reward, "def area(x):\n    return x * x")["info"]
    assert isinstance(feedback.errors([["A"]], ["a"], info), End)
