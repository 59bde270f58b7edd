"""How a user's reward function is called and what it may answer."""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.clients.types import AgentAction, ChatMessage, FieldError, JointAction, Phase, Task
from antiphon.services.common.errors import UserFunctionError
from antiphon.services.common.user_functions import RewardFunction

TASKS = {"t": Task("t", {"prompt": "a task", "answers": [1, 2]})}


def joint_action(key: str = "j0", completions: tuple[str, ...] = ("a0", "b0")) -> JointAction:
    actions = tuple(AgentAction(f"prompt {i}", text) for i, text in enumerate(completions))
    return JointAction(key, "t", 1, Phase.TRAIN, 2, actions)


FOUR = [joint_action(f"j{i}", (f"a{i}", f"b{i}")) for i in range(4)]


def values_of(result: Any, count: int = 4) -> list[float | None]:
    function = RewardFunction(lambda *completions: result, 2, batch_size=count)
    return [score.value for score in function(TASKS, FOUR[:count])]


def called_with(fn: Callable[..., Any], num_agents: int | None = 2) -> None:
    RewardFunction(fn, num_agents)(TASKS, [joint_action()])


def test_completions_go_to_parameters_without_default_in_order() -> None:
    """U1"""
    seen: dict[str, Any] = {}

    def reward(a: list[str], b: list[str], alpha: float = 0.5) -> list[float]:
        seen.update(a=a, b=b, alpha=alpha)
        return [1.0]

    called_with(reward)
    assert seen == {"a": ["a0"], "b": ["b0"], "alpha": 0.5}


@pytest.mark.parametrize("style", ["default", "keyword_only", "first", "positional_only", "kwargs"])
def test_reserved_names_are_filled_by_name_wherever_they_stand(style: str) -> None:
    """U1"""
    seen: dict[str, Any] = {}

    def default(a: Any, b: Any, batch_items: Any = None, prompts: Any = None) -> list[float]:
        seen.update(a=a, b=b, items=batch_items, prompts=prompts)
        return [1.0]

    def keyword_only(a: Any, b: Any, *, prompts: Any, batch_items: Any) -> list[float]:
        return default(a, b, batch_items, prompts)

    def first(prompts: Any, batch_items: Any, a: Any, b: Any) -> list[float]:
        return default(a, b, batch_items, prompts)

    def positional_only(a: Any, prompts: Any, b: Any, batch_items: Any, /) -> list[float]:
        return default(a, b, batch_items, prompts)

    def kwargs(a: Any, b: Any, **values: Any) -> list[float]:
        return default(a, b, values["batch_items"], values["prompts"])

    called_with(locals()[style])
    assert seen == {
        "a": ["a0"],
        "b": ["b0"],
        "items": [{"prompt": "a task", "answers": [1, 2]}],
        "prompts": ["prompt 0"],
    }


def test_an_option_before_star_arguments_keeps_its_default() -> None:
    """U1"""
    seen: list[Any] = []

    def reward(a: Any, alpha: float = 0.5, *others: Any, num_agents: int) -> list[float]:
        seen.extend([a, alpha, others, num_agents])
        return [0.0]

    three = joint_action(completions=("x", "y", "z"))
    RewardFunction(reward, 3)(TASKS, [three])
    assert seen == [["x"], 0.5, (["y"], ["z"]), 3]


def test_all_reserved_names_say_what_they_name() -> None:
    seen: dict[str, Any] = {}

    def reward(a: Any, b: Any, **values: Any) -> list[float]:
        seen.update(values)
        return [0.0]

    called_with(reward)
    assert seen == {
        "prompts": ["prompt 0"],
        "batch_items": [{"prompt": "a task", "answers": [1, 2]}],
        "batch_item": {"prompt": "a task", "answers": [1, 2]},
        "num_agents": 2,
        "joint_action_ids": ["j0"],
        "turns": [1],
        "phases": ["train"],
        "attempts": [2],
    }


def test_chat_prompts_arrive_as_dicts() -> None:
    seen: list[Any] = []
    action = AgentAction((ChatMessage("user", "hello"),), "hi")
    chat = JointAction("j", "t", 1, Phase.EVAL, 1, (action,))

    def reward(a: Any, prompts: Any) -> list[float]:
        seen.extend(prompts)
        return [0.0]

    RewardFunction(reward, 1)(TASKS, [chat])
    assert seen == [[{"role": "user", "content": "hello"}]]


@pytest.mark.parametrize(
    ("fn", "num_agents"),
    [
        (lambda a: [0.0], 2),
        (lambda a, b, c: [0.0], 2),
        (lambda a, b, c=0.5: [0.0], 3),
        (lambda completions: [0.0], 2),
        (lambda a, *rest: [0.0], 0),
    ],
)
def test_a_function_of_another_number_of_agents_is_refused_when_made(
    fn: Callable[..., Any], num_agents: int
) -> None:
    """U1"""
    with pytest.raises(UserFunctionError, match=f"wanted {num_agents}"):
        RewardFunction(fn, num_agents)


def test_a_keyword_that_nothing_fills_is_refused_when_made() -> None:
    """U1"""

    def reward(a: Any, b: Any, *, judge: Any) -> list[float]:
        return [0.0]

    with pytest.raises(UserFunctionError, match="'judge'"):
        RewardFunction(reward)


def test_without_a_number_of_agents_each_request_is_checked() -> None:
    function = RewardFunction(lambda a, b: [1.0])
    assert function(TASKS, [joint_action()])[0].value == 1.0
    with pytest.raises(UserFunctionError, match="wanted 3"):
        function(TASKS, [joint_action(completions=("x", "y", "z"))])


def test_a_request_of_another_number_of_agents_is_the_callers_fault() -> None:
    with pytest.raises(FieldError, match="wanted 2"):
        RewardFunction(lambda *c: [1.0], 2)(TASKS, [joint_action(completions=("x",))])


def test_partials_methods_and_objects_can_be_called() -> None:
    class Judge:
        def score(self, a: Any, b: Any) -> list[float]:
            return [float(len(a[0]))]

        def __call__(self, a: Any, b: Any) -> list[float]:
            return self.score(a, b)

    def weighted(a: Any, b: Any, weight: float) -> list[float]:
        return [weight]

    callables = [Judge().score, Judge(), functools.partial(weighted, weight=2.0)]
    for fn in callables:
        assert RewardFunction(fn, 2)(TASKS, [joint_action()])[0].value == 2.0


def test_a_coroutine_function_is_refused_when_made() -> None:
    async def reward(a: Any, b: Any) -> list[float]:
        return [0.0]

    with pytest.raises(UserFunctionError, match="coroutine"):
        RewardFunction(reward, 2)


@pytest.mark.parametrize("error", [TypeError("missing 1 argument"), ValueError("x"), SystemExit(3)])
def test_an_exception_is_raised_after_one_call_with_the_users_traceback(
    error: BaseException,
) -> None:
    """U2"""
    calls: list[int] = []

    def reward(a: Any, b: Any) -> list[float]:
        calls.append(1)
        raise error

    with pytest.raises(UserFunctionError) as raised:
        called_with(reward)
    assert calls == [1]
    assert "reward" in str(raised.value)
    assert "j0" in str(raised.value)
    assert type(error).__name__ in raised.value.problem
    assert "raise error" in raised.value.trace
    assert "function_arguments.py" not in raised.value.trace
    assert raised.value.joint_action_ids == ("j0",)


@pytest.mark.parametrize(
    "make",
    [
        list,
        tuple,
        deque,
        np.array,
        torch.tensor,
        lambda v: torch.tensor(v, requires_grad=True),
        lambda v: [np.float32(x) for x in v],
        lambda v: [torch.tensor(x) for x in v],
        lambda v: [Decimal(x) for x in v],
    ],
)
def test_a_sequence_of_the_right_length_works_whatever_its_type(make: Callable[..., Any]) -> None:
    """U3"""
    assert values_of(make([0.5, 1.0, -2.0, 0.25])) == [0.5, 1.0, -2.0, 0.25]


@pytest.mark.parametrize(
    ("result", "got"),
    [
        ([1.0], "1 values"),
        ([], "0 values"),
        ([1.0] * 5, "5 values"),
        (np.ones(3), "3 values"),
        (0.5, "float 0.5"),
        (None, "NoneType None"),
        (np.array(0.5), "array"),
        (torch.tensor(0.5), "tensor"),
        ("abcd", "str 'abcd'"),
        ({0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}, "dict"),
        ((x for x in [1.0] * 4), "generator"),
    ],
)
def test_any_other_result_names_function_got_and_wanted(result: Any, got: str) -> None:
    """U3: never broadcast."""
    with pytest.raises(UserFunctionError) as raised:
        values_of(result)
    message = str(raised.value)
    assert "<lambda>" in message
    assert got in message
    assert "wanted a sequence of 4" in message


def test_one_number_for_one_joint_action_is_no_sequence_either() -> None:
    """U3"""
    with pytest.raises(UserFunctionError, match="wanted a sequence of 1"):
        values_of(0.5, count=1)


@pytest.mark.parametrize("entry", ["0.5", [0.5], np.ones(2), 1 + 2j, object()])
def test_an_entry_that_is_no_number_names_its_joint_action(entry: Any) -> None:
    """U3"""
    with pytest.raises(UserFunctionError, match=r"j1.*wanted a number"):
        values_of([1.0, entry, 1.0, 1.0])


def test_a_fault_of_one_entry_is_that_entrys_only() -> None:
    """L6, S8: the others keep their reward."""
    function = RewardFunction(lambda a, b: [1.0, None, math.nan, 10**400], 2, batch_size=4)
    scores = function(TASKS, FOUR)
    assert [s.value for s in scores] == [1.0, None, None, None]
    assert scores[0].missing_reason is None
    assert all(s.missing_reason for s in scores[1:])
    assert "None" in (scores[1].missing_reason or "")
    assert "not finite" in (scores[2].missing_reason or "")


def test_a_dict_carries_components_and_info() -> None:
    entry = {"value": np.float64(0.5), "components": {"length": 1}, "info": {"why": ["short"]}}
    function = RewardFunction(lambda a, b: [entry], 2)
    (score,) = function(TASKS, [joint_action()])
    assert score.value == 0.5
    assert score.components == {"length": 1.0}
    assert score.info == {"why": ["short"]}


def test_a_dict_may_give_a_reason_instead_of_a_value() -> None:
    function = RewardFunction(lambda a, b: [{"missing_reason": "no judge"}], 2)
    (score,) = function(TASKS, [joint_action()])
    assert (score.value, score.missing_reason) == (None, "no judge")


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({"valeu": 1.0}, "valeu"),
        ({"components": {}}, "components"),
        ({"value": "x"}, "str 'x'"),
        ({"value": 1.0, "components": [1]}, "components"),
        ({"value": 1.0, "components": {"a": "x"}}, "str 'x'"),
        ({"value": 1.0, "info": {"when": {1, 2}}}, "info.when"),
        ({"value": 1.0, "info": "text"}, "info"),
    ],
)
def test_a_dict_that_is_no_score_is_refused(entry: Any, named: str) -> None:
    """U3"""
    with pytest.raises(UserFunctionError, match=named):
        RewardFunction(lambda a, b: [entry], 2)(TASKS, [joint_action()])


def test_joint_actions_come_one_a_call_unless_told_otherwise() -> None:
    calls: list[tuple[Any, Any]] = []

    def reward(a: Any, b: Any) -> list[float]:
        calls.append((a, b))
        return [float(text[1]) for text in a]

    assert [s.value for s in RewardFunction(reward, 2)(TASKS, FOUR)] == [0.0, 1.0, 2.0, 3.0]
    assert calls == [([f"a{i}"], [f"b{i}"]) for i in range(4)]
    calls.clear()
    scores = RewardFunction(reward, 2, batch_size=3)(TASKS, FOUR)
    assert [(s.joint_action_id, s.value) for s in scores] == [(f"j{i}", i) for i in range(4)]
    assert calls == [(["a0", "a1"], ["b0", "b1"]), (["a2", "a3"], ["b2", "b3"])]


def test_joint_actions_of_different_numbers_of_agents_are_not_mixed() -> None:
    calls: list[int] = []

    def reward(*completions: Any) -> list[float]:
        calls.append(len(completions))
        return [0.0] * len(completions[0])

    mixed = [joint_action("x"), joint_action("y", ("only",)), joint_action("z", ("only",))]
    RewardFunction(reward, batch_size=8)(TASKS, mixed)
    assert calls == [2, 1]


def test_a_call_holds_joint_actions_of_one_node_whatever_is_asked_together() -> None:
    calls: list[list[str]] = []

    def reward(a: list[str], b: list[str]) -> list[float]:
        calls.append(a)
        return [0.0] * len(a)

    def after(answer: str, *ids: str) -> list[JointAction]:
        history = ((AgentAction("prompt", answer), AgentAction("prompt", answer)),)
        return [replace(joint_action(i, (i, i)), turn=2, history=history) for i in ids]

    asked = [joint_action("r", ("r", "r")), *after("x", "s", "t", "u"), *after("y", "v", "w")]
    RewardFunction(reward, 2, batch_size=8)(TASKS, asked)
    assert calls == [["r"], ["s", "t", "u"], ["v", "w"]]
    other = replace(joint_action("z", ("z", "z")), task_id="other")
    calls.clear()
    RewardFunction(reward, 2, batch_size=8)({**TASKS, "other": Task("other", {})}, [*FOUR, other])
    assert calls == [["a0", "a1", "a2", "a3"], ["z"]]


def test_one_item_by_name_needs_batches_of_one() -> None:
    def reward(a: Any, b: Any, batch_item: Any) -> list[float]:
        return [float(len(batch_item["answers"]))]

    assert RewardFunction(reward, 2)(TASKS, [joint_action()])[0].value == 2.0
    with pytest.raises(UserFunctionError, match="batch_items"):
        RewardFunction(reward, 2, batch_size=2)


def test_what_the_function_changes_is_its_own() -> None:
    """U4"""

    def reward(a: Any, b: Any, batch_items: Any) -> list[float]:
        before = len(batch_items[0]["answers"])
        batch_items[0]["answers"].append(3)
        a.append("x")
        return [float(before)]

    scores = RewardFunction(reward, 2)(TASKS, FOUR[:2])
    assert [s.value for s in scores] == [2.0, 2.0]
    assert TASKS["t"].item["answers"] == [1, 2]


def test_function_and_ids_are_recorded_before_each_call() -> None:
    """U7: what is known when a call kills the process."""
    happened: list[Any] = []

    def reward(a: Any, b: Any) -> list[float]:
        happened.append("called")
        return [0.0]

    function = RewardFunction(reward, 2, record_call=lambda name, ids: happened.append((name, ids)))
    function(TASKS, FOUR[:2])
    assert happened == [(function.name, ("j0",)), "called", (function.name, ("j1",)), "called"]
    assert function.name.endswith("reward")


def test_an_empty_completion_is_an_empty_text() -> None:
    """L16"""
    seen: list[Any] = []

    def reward(a: Any, b: Any) -> list[float]:
        seen.extend([a, b])
        return [0.0]

    RewardFunction(reward, 2)(TASKS, [joint_action(completions=("", ""))])
    assert seen == [[""], [""]]


def test_a_batch_size_below_one_is_refused() -> None:
    with pytest.raises(FieldError, match="at least 1"):
        RewardFunction(lambda a: [0.0], 1, batch_size=0)
