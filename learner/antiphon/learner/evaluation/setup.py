"""What a run evaluates on, resolved and checked before anything is started."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.clients.types import FieldError
from antiphon.learner.checkpoints.random_state import kept_generators
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.data.tasks import Tasks
from antiphon.learner.evaluation.figures import PREFIX, EvaluationFunctions
from antiphon.services.common.function_arguments import function_name

_LOGGER: dict[str, list[Any]] = {"agent_completions_turns": [], "batch_items": [], "prompts": []}
_OF_TURN = re.compile(rf"{PREFIX}turn_(\d+)/(reward_mean|expected_return)")


@dataclass(frozen=True)
class EvaluationSetup:
    """The evaluation dataset, and the user's own metrics where there are any."""

    tasks: Tasks
    functions: EvaluationFunctions | None = None


def evaluation_setup(
    dataset: Any,
    logger: Callable[..., Any] | None,
    aggregator: Callable[..., Any] | None,
    *,
    name: str = "eval_dataset",
) -> EvaluationSetup | None:
    """What to evaluate on; None without a dataset.

    Args:
        dataset: Rows, as those to train on.
        logger: The user's `eval_logger`.
        aggregator: The user's `eval_aggregator`.
        name: What errors call the dataset.

    Raises:
        FieldError: It is no dataset, or only one of the functions is given, or one takes other
            arguments than it will get.
    """
    functions = None
    if logger is not None and aggregator is not None:
        _check_takes("eval_logger", logger, (), _LOGGER)
        _check_takes("eval_aggregator", aggregator, ([],), {"num_turns": 1})
        functions = EvaluationFunctions(logger, aggregator)
    elif (logger is None) != (aggregator is None):
        given, missing = "eval_logger", "eval_aggregator"
        if logger is None:
            given, missing = missing, given
        raise FieldError(
            missing, f"nothing, but an {given}", "both: the logger's metrics go to the aggregator"
        )
    return None if dataset is None else EvaluationSetup(Tasks(dataset, name=name), functions)


def check_evaluation(
    evaluation: EvaluationSetup | None, config: MAGRPOConfig, needed: Sequence[str]
) -> None:
    """Refuse an evaluation dataset that cannot be asked, or a best metric that never comes.

    Args:
        evaluation: What to evaluate on.
        config: The settings.
        needed: Columns that the formatters need.

    Raises:
        FieldError: Names what is wrong.
    """
    if evaluation is not None:
        with kept_generators():
            evaluation.tasks.check(needed=needed)
    metric = config.best_metric
    if metric is None:
        return
    if not metric.startswith(PREFIX):
        raise FieldError("best_metric", repr(metric), f'a figure of evaluations, "{PREFIX}..."')
    if evaluation is None or config.eval_interval == 0 or config.eval_num_samples == 0:
        raise FieldError(
            "best_metric",
            f"{metric!r} without evaluations",
            "an evaluation dataset, and eval_interval and eval_num_samples above 0",
        )
    of_turn = _OF_TURN.fullmatch(metric)
    if of_turn is not None and not 1 <= int(of_turn[1]) <= config.num_turns:
        raise FieldError("best_metric", repr(metric), f"a turn from 1 to {config.num_turns}")


def _check_takes(
    name: str, function: Callable[..., Any], given: Sequence[Any], by_name: Mapping[str, Any]
) -> None:
    if not callable(function):
        raise FieldError(name, type(function).__name__, "a function")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C do not tell
        return
    try:
        signature.bind(*given, **by_name)
    except TypeError as error:
        raise FieldError(
            name,
            f"{function_name(function)}{signature}: {error}",
            f"a function that can be called as {name}"
            f"({', '.join([*(['metrics'] if given else []), *(f'{n}=...' for n in by_name)])})",
        ) from error
