"""How a user's transition function is called and what it may answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from antiphon.clients.types import (
    AgentAction,
    BranchEnd,
    ChatMessage,
    JointAction,
    NextPrompts,
    Phase,
    Score,
    ScoredJointAction,
    Task,
)
from antiphon.services.common.errors import UserFunctionError
from antiphon.services.common.user_functions import END, TransitionFunction

TASK = Task("t", {"prompt": "a task", "list": [1]})
TURN_1 = (AgentAction("p0 turn 1", "c0 turn 1"), AgentAction("p1 turn 1", "c1 turn 1"))
TURN_2 = (AgentAction((ChatMessage("user", "p0 turn 2"),), "c0 turn 2"), AgentAction("p1", "c1"))


def scored(value: float | None = 0.5) -> ScoredJointAction:
    action = JointAction("j7", "t", 2, Phase.TRAIN, 1, TURN_2, (TURN_1,))
    reason = None if value is not None else "none"
    return ScoredJointAction(action, Score("j7", value, reason, info={"hint": ["x"]}))


def follow(result: Any) -> Any:
    return TransitionFunction(lambda prompt: result, 2)(TASK, scored()).outcome


def test_all_names_are_filled_and_histories_include_the_present_turn() -> None:
    """U1"""
    seen: dict[str, Any] = {}

    def again(**values: Any) -> list[str]:
        seen.update(values)
        return ["x", "y"]

    result = TransitionFunction(again, 2)(TASK, scored())
    assert result.joint_action_id == "j7"
    assert result.outcome == NextPrompts(("x", "y"))
    assert seen == {
        "prompt": "a task",
        "agent_completions": ["c0 turn 2", "c1"],
        "num_agents": 2,
        "prompt_history_per_agent": [
            ["p0 turn 1", [{"role": "user", "content": "p0 turn 2"}]],
            ["p1 turn 1", "p1"],
        ],
        "response_history_per_agent": [["c0 turn 1", "c0 turn 2"], ["c1 turn 1", "c1"]],
        "batch_item": {"prompt": "a task", "list": [1]},
        "score": 0.5,
        "info": {"hint": ["x"]},
        "turn": 2,
    }


def test_only_the_named_ones_are_passed_in_any_order() -> None:
    """U1"""

    def again(num_agents: int, info: Any, /, score: float, *, prompt: str, tone: str = "!") -> Any:
        return [f"{prompt} {score} {info['hint']}{tone}"] * num_agents

    outcome = TransitionFunction(again, 2)(TASK, scored()).outcome
    assert outcome == NextPrompts(("a task 0.5 ['x']!",) * 2)


def test_an_item_without_a_prompt_gives_an_empty_one() -> None:
    seen: list[str] = []

    def again(prompt: str) -> list[str]:
        seen.append(prompt)
        return ["x", "y"]

    TransitionFunction(again, 2)(Task("t", {}), scored())
    assert seen == [""]


def test_a_parameter_that_nothing_fills_is_refused_when_made() -> None:
    """U1"""
    with pytest.raises(UserFunctionError, match=r"'completions'.*agent_completions"):
        TransitionFunction(lambda prompt, completions: [], 2)


def test_what_the_function_changes_is_its_own() -> None:
    """U4: a sibling branch sees the histories as they were."""
    seen: list[Any] = []

    def again(
        prompt_history_per_agent: Any, response_history_per_agent: Any, batch_item: Any, info: Any
    ) -> list[str]:
        seen.append(
            (len(response_history_per_agent[0]), len(batch_item["list"]), len(info["hint"]))
        )
        response_history_per_agent[0].append("mine")
        response_history_per_agent.clear()
        prompt_history_per_agent[0][1][0]["content"] = "mine"
        batch_item["list"].append(2)
        info["hint"].clear()
        return ["x", "y"]

    function = TransitionFunction(again, 2)
    entry = scored()
    function(TASK, entry)
    function(TASK, entry)
    assert seen == [(2, 1, 1), (2, 1, 1)]
    assert entry == scored()
    assert TASK.item == {"prompt": "a task", "list": [1]}


@pytest.mark.parametrize("make", [list, tuple])
def test_texts_and_chats_are_prompts(make: Callable[..., Any]) -> None:
    chat = [{"role": "system", "content": ""}, {"role": "user", "content": "go on"}]
    assert follow(make(["text", chat])) == NextPrompts(
        ("text", (ChatMessage("system", ""), ChatMessage("user", "go on")))
    )


def test_a_branch_ends_with_or_without_a_reason() -> None:
    assert follow(END("solved")) == BranchEnd("solved")
    outcome = follow(END)
    assert isinstance(outcome, BranchEnd)
    assert outcome.reason


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (["only one"], r"returned 1 prompts, wanted 2"),
        (["x", "y", "z"], r"returned 3 prompts, wanted 2"),
        ([], r"returned 0 prompts, wanted 2"),
        (None, r"NoneType None, wanted a list of 2 prompts.*END"),
        ("xy", r"str 'xy', wanted a list of 2 prompts"),
        ({"0": "x", "1": "y"}, r"dict .* wanted a list of 2 prompts"),
        (["x", None], r"NoneType None for agent 1"),
        (["", "y"], r"an empty prompt for agent 0"),
        (["x", []], r"an empty prompt for agent 1"),
        (["x", 3], r"int 3 for agent 1"),
        (["x", END], r"END.* for agent 1"),
        ([["text"], "y"], r"chat message str 'text' for agent 0"),
        ([[{"role": "user"}], "y"], r"chat message dict .* for agent 0"),
        ([[{"role": "user", "content": 1}], "y"], r"chat message dict .* for agent 0"),
        (["x", "\ud800"], r"agent 1 that is no valid Unicode"),
    ],
)
def test_any_other_result_names_function_agent_got_and_wanted(result: Any, message: str) -> None:
    """U5: no old prompt is used again."""
    with pytest.raises(UserFunctionError, match=message) as raised:
        follow(result)
    assert "<lambda>" in str(raised.value)
    assert "j7" in str(raised.value)
    assert "wanted" in str(raised.value) or "no valid" in str(raised.value)


def test_an_exception_is_raised_after_one_call_with_the_users_traceback() -> None:
    """U2"""
    calls: list[int] = []

    def again(prompt: str) -> list[str]:
        calls.append(1)
        return [prompt["x"]]  # type: ignore[index]

    with pytest.raises(UserFunctionError) as raised:
        TransitionFunction(again, 2)(TASK, scored())
    assert calls == [1]
    assert "TypeError" in raised.value.problem
    assert 'prompt["x"]' in raised.value.trace


def test_a_missing_score_is_none() -> None:
    seen: list[Any] = []

    def again(score: float | None) -> list[str]:
        seen.append(score)
        return ["x", "y"]

    TransitionFunction(again, 2)(TASK, scored(None))
    assert seen == [None]
