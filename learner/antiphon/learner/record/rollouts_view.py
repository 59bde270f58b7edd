"""Recorded trees as text for a terminal, and as JSON values for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from antiphon.learner.record.rollout_reader import (
    Answer,
    Prompt,
    RecordedJointAction,
    RecordedNode,
    Tree,
)

Style = Callable[..., str]
"""Colours a text, as `typer.style`."""


def tree_lines(tree: Tree, turn: int | None, style: Style) -> Iterator[str]:
    """A tree, node by node; `turn` shows the nodes of one turn only.

    Children follow the joint action that they continue, further in.
    """
    root = tree[0]
    after = "evaluation after" if root.phase == "eval" else "after"
    title = f"epoch {root.epoch}, row {root.row}, task {root.task}"
    yield style(f"{title} ({after} {root.prompts_before} prompts)", bold=True)
    nodes = {node.path: node for node in tree}
    if turn is None:
        yield from _node(nodes, root, style)
        return
    for node in tree:
        if node.turn == turn:
            yield from _node({}, node, style)


def _node(
    nodes: dict[tuple[int, ...], RecordedNode], node: RecordedNode, style: Style
) -> Iterator[str]:
    indent = "  " * (1 + 2 * len(node.path))
    where = "".join(f" [{index}]" for index in node.path)
    after = f" after{where}" if where else ""
    yield indent + style(
        f"turn {node.turn}{after}: mean reward {number(node.mean_reward)}, "
        f"mean return {number(node.mean_return)}",
        fg="cyan",
    )
    for agent, prompt in enumerate(node.prompts):
        dead = "; its answers taught nothing" if node.dead[agent] else ""
        yield f"{indent}  agent {agent} was asked{dead}"
        yield from _block(prompt_text(prompt), indent + "      ")
    for action in node.joint_actions:
        yield f"{indent}  {style(f'[{action.index}] {_worth(action)}', bold=True)}"
        for answer in action.answers:
            yield f"{indent}    agent {answer.agent} ({_answer(answer)})"
            yield from _block(answer.text, indent + "      ")
        for role, text in enumerate(action.role_texts):
            yield f"{indent}    which gives role {role}"
            yield from _block(text, indent + "      ")
        child = nodes.get((*node.path, action.index))
        if child is not None:
            yield from _node(nodes, child, style)


def _worth(action: RecordedJointAction) -> str:
    parts = [f"reward {number(action.reward)}", f"return {number(action.return_)}"]
    parts += [f"{name} {number(value)}" for name, value in action.components.items()]
    if action.missing_reason:
        parts.append(f"no score: {action.missing_reason}")
    if action.stop and action.stop != "last_turn":
        detail = f" ({action.stop_detail})" if action.stop_detail else ""
        parts.append(f"ends here: {action.stop.replace('_', ' ')}{detail}")
    return ", ".join(parts)


def _answer(answer: Answer) -> str:
    versions = "-".join(map(str, answer.weights_versions))
    kl = "" if answer.reference_kl is None else f", reference KL {number(answer.reference_kl)}"
    return (
        f"advantage {number(answer.advantage)}, {answer.tokens} tokens, "
        f"log-probability {number(answer.logprob)}{kl}, weights {versions}"
    )


def _block(text: str, indent: str) -> list[str]:
    return [indent + line for line in text.splitlines()] or [indent + "(empty)"]


def prompt_text(prompt: Prompt) -> str:
    """A prompt to read: messages follow each other under their roles."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)


def number(value: float | None) -> str:
    """A number to read, "-" where there is none."""
    return "-" if value is None else f"{value:.4g}"


def node_json(node: RecordedNode) -> dict[str, Any]:
    """A node as JSON values; names as in the dataclasses, `return_` without its underscore."""
    values: dict[str, Any] = _plain(asdict(node))
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key.rstrip("_"): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value
