"""How a run ended: summary.json for programs, SUMMARY.md for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from antiphon.learner.record.figures import NodeFigures
from antiphon.learner.record.progress import duration
from antiphon.learner.rollout.tree import Branch, Node

_QUOTED_CHARACTERS = 600


@dataclass(frozen=True)
class EpochTurn:
    """Means over the nodes of one turn in one epoch."""

    epoch: int
    turn: int
    reward_mean: float | None
    expected_return: float | None


@dataclass(frozen=True)
class Summary:
    """What a run came to.

    By agent [N] are `models`, `agent_folders`, `adapters`, `optimizer_steps`, `weights_versions`.
    The folder of a model that was not saved is None; `adapters` says whether it holds a LoRA
    adapter. `keeps_best` says whether `best/` has the models of the best evaluation.
    """

    run_id: str
    state: str
    error: str
    seconds: float
    epochs: int
    num_epochs: int
    prompts: int
    joint_actions: int
    models: tuple[str, ...]
    agent_folders: tuple[str | None, ...]
    adapters: tuple[bool, ...]
    keeps_best: bool
    optimizer_steps: tuple[int, ...]
    weights_versions: tuple[int, ...]
    stage_seconds: Mapping[str, float]
    rewards: tuple[EpochTurn, ...]


def summary_json(summary: Summary) -> dict[str, Any]:
    """Write a summary as JSON values."""
    return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(summary).items()}


def summary_markdown(summary: Summary, last_tree: Sequence[NodeFigures]) -> str:
    """Write a summary for people.

    Args:
        summary: What the run came to.
        last_tree: The last tree, in pre-order; its best path is shown.
    """
    lines = [
        f"# Run {summary.run_id}",
        "",
        f"{summary.state.capitalize()} after {duration(summary.seconds)}: "
        f"epoch {summary.epochs} of {summary.num_epochs}, {summary.prompts} prompts, "
        f"{summary.joint_actions} joint actions.",
        "",
    ]
    if summary.error:
        lines += ["```text", summary.error, "```", ""]
    lines += _agents(summary)
    lines += _rewards(summary)
    lines += _time(summary)
    lines += ["## Files", "", *_files(summary), ""]
    lines += _best_path(last_tree)
    return "\n".join(lines)


def _agents(summary: Summary) -> list[str]:
    lines = ["## Trained agents", ""]
    lines += ["| agent | trained from | folder | optimiser steps | weights version |"]
    lines += ["|---|---|---|---|---|"]
    for agent, model in enumerate(summary.models):
        folder = summary.agent_folders[agent]
        shown = "not saved" if folder is None else f"`{folder}/`"
        lines.append(
            f"| {agent} | {model} | {shown} | {summary.optimizer_steps[agent]} "
            f"| {summary.weights_versions[agent]} |"
        )
    saved = list(zip(summary.agent_folders, summary.adapters, strict=True))
    if whole := next((folder for folder, adapter in saved if folder and not adapter), None):
        lines += ["", f'Load one with `AutoModelForCausalLM.from_pretrained("{whole}")`.']
    if lora := next((folder for folder, adapter in saved if folder and adapter), None):
        lines += ["", f'Load an adapter with `PeftModel.from_pretrained(base, "{lora}")`.']
    return [*lines, ""]


def _rewards(summary: Summary) -> list[str]:
    if not summary.rewards:
        return []
    lines = ["## Rewards", "", "| epoch | turn | mean reward | expected return |"]
    lines.append("|---|---|---|---|")
    lines += [
        f"| {r.epoch} | {r.turn} | {_number(r.reward_mean)} | {_number(r.expected_return)} |"
        for r in summary.rewards
    ]
    return [*lines, ""]


def _time(summary: Summary) -> list[str]:
    if not summary.stage_seconds:
        return []
    stages = ", ".join(f"{stage} {duration(s)}" for stage, s in summary.stage_seconds.items())
    return ["## Time", "", f"{stages}. Stages may overlap.", ""]


def _files(summary: Summary) -> list[str]:
    best = (
        ["- `best/`: the agents as they were at the best evaluation"] if summary.keeps_best else []
    )
    return [
        *best,
        "- `config.json`: the settings",
        "- `metrics.jsonl`: a row of figures per line",
        "- `rollouts/`: prompts, answers, rewards, advantages (Parquet, a joint action per row);",
        "  `antiphon rollouts FOLDER` shows them, `antiphon report FOLDER` makes a page of the run",
        "- `summary.json`: this page for programs",
    ]


def _best_path(tree: Sequence[NodeFigures]) -> list[str]:
    """Follow the joint actions of highest return through a tree."""
    if not tree:
        return []
    by_path = {figures.node.path: figures for figures in tree}
    lines = ["## Best answers to the last prompt", ""]
    figures: NodeFigures | None = by_path.get(())
    while figures is not None:
        scored = [(r, i) for i, r in enumerate(figures.returns) if r is not None]
        if not scored:
            break
        best, index = max(scored, key=lambda pair: (pair[0], -pair[1]))
        branch = figures.node.branches[index]
        lines += _joint_action(figures.node, branch, best)
        figures = None if branch.child is None else by_path.get(branch.child.path)
    return lines


def _joint_action(node: Node, branch: Branch, best: float) -> list[str]:
    lines = [f"### Turn {node.turn}: reward {_number(branch.reward)}, return {_number(best)}", ""]
    for agent, sample in enumerate(branch.samples):
        prompt = node.prompts[agent].content
        text = prompt if isinstance(prompt, str) else "\n".join(m.content for m in prompt)
        lines += [f"Agent {agent} was asked", "", *_quote(text), ""]
        lines += ["and answered", "", *_quote(node.completions[agent][sample].text), ""]
    return lines


def _quote(text: str) -> list[str]:
    """Indent as literal text, shortened where it is long."""
    shown = text if len(text) <= _QUOTED_CHARACTERS else text[:_QUOTED_CHARACTERS] + " [...]"
    return [f"    {line}" for line in shown.splitlines()] or ["    "]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
