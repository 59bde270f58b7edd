"""What an evaluation came to: figures of each task, their means, and the answers path by path.

Per task and turn t, over the task's nodes of that turn,

    reward_mean        mean over the nodes of (mean reward of the node's joint actions)
    expected_return    mean over the nodes of (mean return), R = r + discount * mean(returns of the
                       child node), as in training; no reference KL is taken off

and of an evaluation the mean of each over the tasks that have it, so every task weighs the same
however many of its branches went on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.clients.types import FieldError
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.record.figures import NodeFigures, tree_figures
from antiphon.learner.record.metric_rows import Figures
from antiphon.learner.rollout.tree import Node
from antiphon.services.common.function_arguments import function_name

PREFIX = "eval/"
_COUNTS = ("/joint_actions", "/missing_rewards")


@dataclass(frozen=True)
class EvaluatedTask:
    """One task: its tree (None where its first prompt does not fit the context) and its figures.

    `figures` are named ``eval/turn_1/reward_mean`` and so on.
    """

    task_id: str
    root: Node | None
    nodes: tuple[NodeFigures, ...]
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Evaluation:
    """An evaluation: its number, counted from 1 in a run, its tasks, and the figures of all."""

    number: int
    tasks: tuple[EvaluatedTask, ...]
    figures: Mapping[str, float]
    seconds: float = 0.0

    @property
    def nodes(self) -> tuple[NodeFigures, ...]:
        """The nodes of all trees, each tree in pre-order."""
        return tuple(node for task in self.tasks for node in task.nodes)

    @property
    def turns(self) -> tuple[int, ...]:
        """The turns that any task came to."""
        return tuple(sorted({node.node.turn for node in self.nodes}))

    def turn(self, turn: int) -> tuple[float | None, float | None]:
        """Mean reward and expected return of a turn, None where no task has one."""
        name = f"{PREFIX}turn_{turn}"
        return self.figures.get(f"{name}/reward_mean"), self.figures.get(f"{name}/expected_return")

    def missing(self, turn: int) -> float:
        """Joint actions of a turn that have no reward."""
        return self.figures.get(f"{PREFIX}turn_{turn}/missing_rewards", 0.0)


def evaluated_task(task_id: str, root: Node | None, config: MAGRPOConfig) -> EvaluatedTask:
    """The figures of a task.

    Args:
        task_id: The task's id.
        root: Its tree, None where it has none.
        config: Says the discount.
    """
    nodes = () if root is None else tuple(tree_figures(root, config))
    figures = Figures()
    for node in nodes:
        turn = f"{PREFIX}turn_{node.node.turn}"
        figures.mean(f"{turn}/reward_mean", node.mean_reward)
        figures.mean(f"{turn}/expected_return", node.mean_return)
        figures.sum(f"{turn}/joint_actions", len(node.node.branches))
        figures.sum(f"{turn}/missing_rewards", sum(node.missing.values()))
        for agent, completions in enumerate(node.node.completions):
            tokens = node.completion_tokens(agent) / len(completions)
            figures.mean(f"{PREFIX}agent_{agent}/completion_tokens_mean", tokens)
    return EvaluatedTask(task_id, root, nodes, figures.read())


def overall(tasks: Sequence[EvaluatedTask]) -> dict[str, float]:
    """The figures of an evaluation: means over its tasks, counts over all of them."""
    figures = Figures()
    for task in tasks:
        for name, value in task.figures.items():
            add = figures.sum if name.endswith(_COUNTS) else figures.mean
            add(name, value)
    figures.sum(f"{PREFIX}tasks", len(tasks))
    if skipped := sum(task.root is None for task in tasks):
        figures.sum(f"{PREFIX}skipped_prompts", skipped)
    return figures.read()


@dataclass(frozen=True)
class EvaluationFunctions:
    """The user's own metrics: `logger` makes one mapping per path, `aggregator` means of them.

    As in CoMLRL, ``logger(agent_completions_turns=..., batch_items=..., prompts=...)`` and
    ``aggregator(metrics, num_turns=...)``; what the aggregator gives is told under ``eval/``.
    """

    logger: Callable[..., Any]
    aggregator: Callable[..., Any]

    @property
    def name(self) -> str:
        """What they are called."""
        return (
            f"eval_logger {function_name(self.logger)} and "
            f"eval_aggregator {function_name(self.aggregator)}"
        )

    def figures(self, tasks: Iterable[EvaluatedTask], num_turns: int) -> dict[str, float]:
        """Call both; empty where no task has an answer. Runs user code.

        Raises:
            FieldError: The aggregator gave something else than numbers by name.
        """
        answered = [
            (task.root, path)
            for task in tasks
            if task.root is not None
            for path in answers(task.root)
        ]
        if not answered:
            return {}
        num_agents = len(answered[0][1][0])
        items = [dict(root.task.item) for root, _ in answered]
        metrics = self.logger(
            agent_completions_turns=[
                [[turn[agent] for turn in path] for _, path in answered]
                for agent in range(num_agents)
            ],
            batch_items=items,
            prompts=[item.get("prompt", "") for item in items],
        )
        return self._numbers(self.aggregator(metrics, num_turns=num_turns))

    def _numbers(self, given: object) -> dict[str, float]:
        where = f"what eval_aggregator {function_name(self.aggregator)} returned"
        wanted = "a mapping of metric names to numbers"
        if not isinstance(given, Mapping):
            raise FieldError(where, type(given).__name__, wanted)
        figures = {}
        for name, value in given.items():
            if not isinstance(name, str) or not hasattr(value, "__float__"):
                raise FieldError(where, f"{name!r}: {type(value).__name__}", wanted)
            figures[PREFIX + name] = float(value)
        return figures


def answers(root: Node) -> list[list[tuple[str, ...]]]:
    """The agents' texts along every path of a tree, from its root to where it ends.

    Returns:
        Per path, per turn, each agent's text [N] (each role's, where one model plays all roles).
        Paths are in order of joint action, the earliest turn slowest.
    """
    paths: list[list[tuple[str, ...]]] = []
    for branch in root.branches:
        texts = branch.role_texts or tuple(
            root.completions[agent][sample].text for agent, sample in enumerate(branch.samples)
        )
        rest = [[]] if branch.child is None else answers(branch.child)
        paths += [[texts, *path] for path in rest]
    return paths
