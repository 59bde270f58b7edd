"""Figures of an evaluation, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.support.trees import make_node

from antiphon.clients.types import FieldError
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.evaluation.figures import (
    EvaluatedTask,
    Evaluation,
    EvaluationFunctions,
    answers,
    evaluated_task,
    overall,
)
from antiphon.learner.rollout.tree import Node

HALF = MAGRPOConfig(discount=0.5)


def branching() -> Node:
    """Rewards 1 and 3; below the first 2 and 4, below the second 0 and none."""
    children = {0: make_node([2.0, 4.0], path=(0,)), 1: make_node([0.0, None], path=(1,))}
    return make_node([1.0, 3.0], children=children)


def path(*rewards: float | None) -> Node:
    """One joint action at each turn."""
    node: Node | None = None
    for turn in range(len(rewards), 0, -1):
        children = None if node is None else {0: node}
        node = make_node([rewards[turn - 1]], children=children, path=(0,) * (turn - 1))
    assert node is not None
    return node


def test_rewards_and_discounted_returns_of_every_turn() -> None:
    """R = 1 + 0.5 * 3 and 3 + 0.5 * 0 at turn 1; the missing reward is in no mean but counted."""
    task = evaluated_task("row-0", branching(), HALF)
    assert task.figures == {
        "eval/turn_1/reward_mean": 2.0,
        "eval/turn_1/expected_return": 2.75,
        "eval/turn_2/reward_mean": 1.5,
        "eval/turn_2/expected_return": 1.5,
        "eval/turn_1/joint_actions": 2,
        "eval/turn_1/missing_rewards": 0,
        "eval/turn_2/joint_actions": 4,
        "eval/turn_2/missing_rewards": 1,
        "eval/agent_0/completion_tokens_mean": 2.0,
        "eval/agent_1/completion_tokens_mean": 2.0,
    }


def test_a_reference_kl_is_not_taken_off_what_is_evaluated() -> None:
    config = MAGRPOConfig(discount=0.5, reference_kl_enabled=True, reference_kl_coef=100.0)
    plain = evaluated_task("row-0", branching(), HALF)
    assert evaluated_task("row-0", branching(), config).figures == plain.figures


def test_every_task_weighs_the_same_and_only_where_it_has_a_figure() -> None:
    tasks = [
        evaluated_task("row-0", branching(), HALF),
        evaluated_task("row-1", path(4.0), HALF),
        evaluated_task("row-2", None, HALF),
    ]
    figures = overall(tasks)
    assert figures["eval/turn_1/reward_mean"] == 3.0
    assert figures["eval/turn_1/expected_return"] == (2.75 + 4.0) / 2
    assert figures["eval/turn_2/reward_mean"] == 1.5
    assert figures["eval/turn_1/joint_actions"] == 3
    assert (figures["eval/tasks"], figures["eval/skipped_prompts"]) == (3, 1)


def test_an_evaluation_knows_its_turns() -> None:
    tasks = (evaluated_task("row-0", path(2.0, None), HALF),)
    evaluation = Evaluation(1, tasks, overall(tasks))
    assert evaluation.turns == (1, 2)
    assert evaluation.turn(1) == (2.0, None)
    assert evaluation.turn(2) == (None, None)
    assert (evaluation.missing(1), evaluation.missing(2)) == (0, 1)


def test_answers_follow_every_path_from_the_root() -> None:
    root = branching()
    root.branches[1].child = None
    assert answers(root) == [
        [("20 2", "20 2"), ("20 2", "20 2")],
        [("20 2", "20 2"), ("21 2", "21 2")],
        [("21 2", "21 2")],
    ]


def test_the_roles_texts_count_where_one_model_plays_all_roles() -> None:
    root = path(1.0)
    root.branches[0].role_texts = ("left", "right", "middle")
    assert answers(root) == [[("left", "right", "middle")]]


def test_logger_and_aggregator_get_what_comlrls_get() -> None:
    seen: dict[str, Any] = {}

    def logger(**given: Any) -> list[dict[str, float]]:
        seen.update(given)
        return [{"x": 1.0}, {"x": 2.0}]

    def aggregator(metrics: Sequence[dict[str, float]], num_turns: int) -> dict[str, float]:
        return {"turn_1/x": sum(m["x"] for m in metrics), "turns": num_turns}

    first, second = path(1.0, 2.0), path(3.0, 4.0)
    second.task = replace(second.task, item={"prompt": "q", "answer": 5})
    tasks = [evaluated_task("row-0", first, HALF), evaluated_task("row-1", second, HALF)]
    tasks.insert(1, evaluated_task("row-7", None, HALF))
    figures = EvaluationFunctions(logger, aggregator).figures(tasks, 2)
    assert figures == {"eval/turn_1/x": 3.0, "eval/turns": 2.0}
    of_agent = [["20 2", "20 2"], ["20 2", "20 2"]]
    assert seen == {
        "agent_completions_turns": [of_agent, of_agent],
        "batch_items": [{"prompt": "p"}, {"prompt": "q", "answer": 5}],
        "prompts": ["p", "q"],
    }


def test_nothing_is_asked_of_the_users_functions_where_nothing_was_answered() -> None:
    def never(**given: Any) -> None:
        raise AssertionError(given)

    skipped: list[EvaluatedTask] = [evaluated_task("row-0", None, HALF)]
    assert EvaluationFunctions(never, never).figures(skipped, 2) == {}


@pytest.mark.parametrize("given", [None, 3.0, {"turn_1/x": "high"}, {1: 2.0}])
def test_an_aggregator_that_gives_no_numbers_is_named(given: Any) -> None:
    functions = EvaluationFunctions(lambda **_: [], lambda metrics, num_turns: given)
    with pytest.raises(FieldError, match="eval_aggregator"):
        functions.figures([evaluated_task("row-0", path(1.0), HALF)], 1)
