"""An evaluation takes the first rows, batch by batch, and leaves no trace."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.trees import make_node

from antiphon.clients.types import FieldError, Phase
from antiphon.learner.checkpoints.random_state import kept_generators
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.data.tasks import Row, Tasks
from antiphon.learner.evaluation.evaluation import Evaluator, evaluation_sampling, evaluation_shape
from antiphon.learner.evaluation.figures import EvaluationFunctions
from antiphon.learner.evaluation.setup import check_evaluation, evaluation_setup
from antiphon.learner.rollout.rollout import Grown
from antiphon.learner.rollout.seeds import completion_seed

ROWS = [{"prompt": word} for word in ("a", "b", "c", "d", "e")]


class Grower:
    """Grows a root with the row's number as its reward; `too_long` has no tree."""

    def __init__(self, too_long: int | None = None) -> None:
        self.batches: list[tuple[int, list[int]]] = []
        self.too_long = too_long

    async def grow(self, epoch: int, rows: Sequence[Row]) -> Grown:
        self.batches.append((epoch, [row.row for row in rows]))
        random.random(), np.random.random(), torch.rand(1)
        grown = Grown(roots=[])
        for row in rows:
            if row.row == self.too_long:
                grown.skipped.append((row.row, "too long"))
                continue
            root = make_node([float(row.row)])
            root.task, root.row = row.task, row.row
            grown.roots.append(root)
        return grown


def generators() -> tuple[Any, ...]:
    numpy = np.random.get_state(legacy=False)["state"]
    return random.getstate(), numpy["key"].tolist(), numpy["pos"], torch.get_rng_state().tolist()


def evaluator(grower: Grower, rows: Any = ROWS, **config: Any) -> Evaluator:
    async def inline(function: Callable[[], Any], what: str) -> Any:
        return function()

    return Evaluator(
        MAGRPOConfig(num_turns=1, **config),
        tasks=Tasks(rows, name="eval_dataset"),
        rollout=grower,  # type: ignore[arg-type]
        on_main_thread=inline,
        functions=EvaluationFunctions(
            lambda agent_completions_turns, batch_items, prompts: prompts,
            lambda metrics, num_turns: {"prompts": len(metrics)},
        ),
    )


@pytest.mark.parametrize(
    ("samples", "batches"), [(3, [[0, 1], [2]]), (4, [[0, 1], [2, 3]]), (99, [[0, 1], [2, 3], [4]])]
)
async def test_the_first_rows_are_evaluated_in_batches(
    samples: int, batches: list[list[int]]
) -> None:
    grower = Grower()
    told: list[str] = []
    evaluation = await evaluator(grower, eval_batch_size=2).evaluate(
        7, samples, lambda task: told.append(task.task_id)
    )
    assert grower.batches == [(7, batch) for batch in batches]
    rows = [row for batch in batches for row in batch]
    assert told == [task.task_id for task in evaluation.tasks] == [f"row-{row}" for row in rows]
    assert evaluation.figures["eval/turn_1/reward_mean"] == sum(rows) / len(rows)
    assert evaluation.figures["eval/prompts"] == evaluation.figures["eval/tasks"] == len(rows)
    assert evaluation.figures["eval/number"] == 7


async def test_a_prompt_that_is_too_long_is_counted_not_averaged() -> None:
    evaluation = await evaluator(Grower(too_long=1)).evaluate(1, 3)
    assert evaluation.figures["eval/turn_1/reward_mean"] == 1.0
    assert evaluation.figures["eval/skipped_prompts"] == 1
    assert evaluation.tasks[1].figures == {}


async def test_every_evaluation_of_a_stream_begins_anew() -> None:
    """L19: a dataset without a length is read only as far as is evaluated."""
    read: list[str] = []

    class Stream:
        def __iter__(self) -> Iterator[dict[str, str]]:
            for row in ROWS:
                read.append(row["prompt"])
                yield row

    made = evaluator(Grower(), Stream())
    for number in (1, 2):
        read.clear()
        await made.evaluate(number, 2)
        assert read == ["a", "b"]


async def test_the_generators_of_this_process_are_left_as_they_were() -> None:
    """L19: what user functions draw in an evaluation is not missing from training."""
    before = generators()
    await evaluator(Grower()).evaluate(1, 3)
    assert generators() == before


def test_they_are_put_back_after_a_failure_too() -> None:
    before = generators()

    def fail() -> None:
        with kept_generators():
            random.random(), torch.rand(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert generators() == before


def test_seeds_of_evaluations_are_those_of_no_training() -> None:
    """L19: phase and number of the evaluation are in the seed."""
    where: dict[str, Any] = {"row": 0, "path": (), "agent": 0, "sample": 0}
    seeds = {
        completion_seed(0, phase, epoch=number, **where)
        for phase in (Phase.TRAIN, Phase.EVAL)
        for number in (1, 2)
    }
    assert len(seeds) == 4


def test_a_path_is_one_sample_wide_and_follows_every_turn() -> None:
    config = MAGRPOConfig(num_turns=3, num_generations=4, joint_mode="cross")
    path = evaluation_shape(config, 2)
    assert (path.num_generations, path.joint_mode, path.num_turns) == (1, "aligned", 3)
    assert path.early_termination_threshold is None
    tree = evaluation_shape(config.replace(eval_mode="tree"), 2, ((0, 1),))
    assert (tree.num_generations, tree.joint_mode, tree.policies) == (4, "cross", ((0, 1),))
    assert tree.early_termination_threshold is None


def test_sampling_is_that_of_training_unless_a_temperature_is_set() -> None:
    config = MAGRPOConfig(temperature=0.7)
    assert evaluation_sampling(config) == config.sampling
    greedy = evaluation_sampling(config.replace(eval_temperature=0))
    assert (greedy.temperature, greedy.top_k) == (0, config.sampling.top_k)


def takes_other(completions: list[str]) -> None:
    """No logger."""


@pytest.mark.parametrize(
    ("logger", "aggregator", "field"),
    [
        (print, None, "eval_aggregator: got nothing"),
        (None, print, "eval_logger: got nothing"),
        (takes_other, takes_other, "eval_logger: got .*takes_other"),
        (lambda **_: [], takes_other, "eval_aggregator: got .*takes_other"),
        (3, lambda metrics, num_turns: {}, "eval_logger: got int"),
    ],
)
def test_functions_that_cannot_be_called_are_refused_when_given(
    logger: Any, aggregator: Any, field: str
) -> None:
    with pytest.raises(FieldError, match=field):
        evaluation_setup(ROWS, logger, aggregator)


@pytest.mark.parametrize(
    ("settings", "rows", "wanted"),
    [
        ({"best_metric": "turn_1/reward_mean"}, ROWS, '"eval/'),
        ({"best_metric": "eval/turn_3/reward_mean"}, ROWS, "a turn from 1 to 2"),
        ({"best_metric": "eval/turn_1/reward_mean"}, None, "an evaluation dataset"),
        ({"best_metric": "eval/turn_1/reward_mean", "eval_interval": 0}, ROWS, "eval_interval"),
        ({}, [{"question": "a"}], "a column 'prompt'"),
    ],
)
def test_what_never_comes_is_refused_at_start(
    settings: dict[str, Any], rows: Any, wanted: str
) -> None:
    with pytest.raises(FieldError, match=wanted):
        check_evaluation(
            evaluation_setup(rows, None, None), MAGRPOConfig(num_turns=2, **settings), ["prompt"]
        )


def test_what_can_be_evaluated_is_taken() -> None:
    config = MAGRPOConfig(num_turns=2, best_metric="eval/turn_2/expected_return")
    check_evaluation(evaluation_setup(ROWS, None, None), config, ["prompt"])
    check_evaluation(None, MAGRPOConfig(), ["prompt"])
