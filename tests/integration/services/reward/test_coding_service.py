"""No completion ends the coding service or a run, and each gets the reward that it should."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.processes import Processes

from antiphon.clients.retry import RetryPolicy
from antiphon.clients.reward import RewardClient
from antiphon.clients.types import AgentAction, JointAction, Phase, Task

TASK = Task("t", {"entry_point": "f", "tests": ["assert f() == 1", "assert f() == 2"]})
NOT_LOADED = 0.1
FORGE = """
import json, os
for report in range(3, 64):
    try:
        os.write(report, {told} + b"\\n")
    except OSError:
        pass
"""
LOADED = "def f():\n    return 1\n"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the ready reward, as it is served."""
    with Processes(tmp_path_factory.mktemp("service")) as processes:
        yield processes.serve("reward", "reward", "antiphon.services.reward.coding:score").address()


async def scored(address: str, completion: str) -> Any:
    actions = (AgentAction("p", ""), AgentAction("p", completion))
    async with RewardClient(address, retry=RetryPolicy(attempts=1)) as client:
        asked = [JointAction("j", "t", 1, Phase.TRAIN, 1, actions)]
        (score,) = await client.score("run", [TASK], asked, timeout=60)
    return score


def texts(value: Any) -> Iterator[str]:
    """All texts in an info."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from texts(inner)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ('raise SyntaxError("\\ud800")', "SyntaxError: \\ud800"),
        ('e = SyntaxError("x"); e.lineno = 10**4100; raise e', "SyntaxError: x"),
        ('raise SyntaxError("x" * 900_000)', "SyntaxError: " + 1987 * "x"),
        ('raise SyntaxError(["x"])', "SyntaxError: ['x']"),
        ("class E(Exception):\n    __str__ = lambda self: 1\nraise E", "E"),
        ('exec("(")', "SyntaxError: '(' was never closed (<string>, line 1)"),
    ],
)
async def test_code_that_raises_a_syntax_error_is_python(
    address: str, code: str, error: str
) -> None:
    score = await scored(address, code)
    assert score.value == pytest.approx(NOT_LOADED)
    assert score.components["syntax"] == 1
    assert score.info["syntax_error"] is None
    assert score.info["error"].startswith(error)
    assert {test["error"] for test in score.info["tests"]} == {score.info["error"]}
    assert len(score.info["error"]) <= 2000


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f(:", "invalid syntax"),
        ("x = 1\0", "null bytes"),
        ("-" * 100_000 + "1", "MemoryError"),
        ("+".join(["1"] * 100_000), "RecursionError"),
    ],
    ids=["syntax error", "null byte", "deep nesting", "long sum"],
)
async def test_code_that_cannot_be_compiled_is_no_python(
    address: str, code: str, message: str
) -> None:
    score = await scored(address, code)
    assert score.value == 0
    assert score.components["syntax"] == 0
    assert message in score.info["syntax_error"]["message"]
    assert {test["error"] for test in score.info["tests"]} == {"the code is no Python"}


@pytest.mark.parametrize(
    "told",
    [
        """json.dumps({"syntax": [1, 1, "\\ud800"]}).encode()""",
        """b'{"syntax": [1' + 4100 * b"0" + b', 1, "x"]}'""",
        """b'{"syntax": [1, 1, "' + 900_000 * b"x" + b'"]}'""",
        """b'{"syntax": [1, 1, "x"]}'""",
        """b'{"test": 0, "error": ["' + 200_000 * b'x","' + b'"]}'""",
        """json.dumps({"test": 0, "error": {"\\ud800": 1e400}}).encode()""",
        """b'{"test": 0, "value": 1' + 4100 * b"0" + b'}'""",
        """b'{"test": 1' + 4100 * b"0" + b', "value": "1"}'""",
        """b'{"error": 1' + 4100 * b"0" + b'}'""",
        """b'{"error": [' + 100_000 * b'[' """,
    ],
)
async def test_a_report_that_the_code_forges_changes_nothing(address: str, told: str) -> None:
    score = await scored(address, FORGE.format(told=told) + LOADED)
    assert score.components["syntax"] == 1
    assert score.value == pytest.approx(0.1 + 0.2 + 0.7 / 2)
    assert score.info["tests"][1]["error"] == "got 1, wanted 2"


@pytest.mark.parametrize(
    "told",
    [
        """json.dumps({"test": 1, "error": "\\ud800" * 9_000}).encode()""",
        """b'{"test": 1, "error": "' + 900_000 * b"x" + b'"}'""",
        """b'{"test": 1, "value": "' + 900_000 * b"x" + b'"}'""",
        """json.dumps({"error": "\\ud800" * 9_000}).encode()""",
        """b'{"error": "' + 900_000 * b"x" + b'"}'""",
    ],
)
async def test_what_it_tells_in_the_right_form_is_text_of_bounded_length(
    address: str, told: str
) -> None:
    score = await scored(address, FORGE.format(told=told) + LOADED)
    assert max(map(len, texts(score.info))) <= 2000
    for text in texts(score.info):
        text.encode()
