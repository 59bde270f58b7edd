"""Trees as lines of JSON that people and programs can read, one node per line."""

from __future__ import annotations

from typing import Any

from antiphon.clients.types import Chat, Completion
from antiphon.learner.figures import NodeFigures, weights_versions


def rollout_line(epoch: int, figures: NodeFigures) -> dict[str, Any]:
    """Write down a node: what each agent was asked and answered, and what it was worth.

    Args:
        epoch: Counted from 1.
        figures: The node and its numbers.
    """
    node = figures.node
    return {
        "epoch": epoch,
        "row": node.row,
        "task": node.task.id,
        "turn": node.turn,
        "path": list(node.path),
        "mean_reward": figures.mean_reward,
        "mean_return": figures.mean_return,
        "agents": [_agent(figures, agent) for agent in range(len(node.prompts))],
        "joint_actions": [_joint_action(figures, index) for index in range(len(node.branches))],
    }


def _agent(figures: NodeFigures, agent: int) -> dict[str, Any]:
    node = figures.node
    group = figures.advantages[agent]
    return {
        "agent": agent,
        "prompt": _content(node.prompts[agent].content),
        "dead": group.dead,
        "completions": [
            _completion(completion, return_, advantage)
            for completion, return_, advantage in zip(
                node.completions[agent], figures.agent_returns[agent], group.values, strict=True
            )
        ],
    }


def _completion(
    completion: Completion, return_: float | None, advantage: float | None
) -> dict[str, Any]:
    return {
        "text": completion.text,
        "tokens": len(completion.token_ids),
        "finish": completion.finish_reason.value,
        "return": return_,
        "advantage": advantage,
        "weights_versions": weights_versions(completion),
    }


def _joint_action(figures: NodeFigures, index: int) -> dict[str, Any]:
    branch = figures.node.branches[index]
    line: dict[str, Any] = {
        "id": branch.joint_action_id,
        "samples": list(branch.samples),
        "reward": branch.finite_reward,
        "return": figures.returns[index],
        "stop": None if branch.stop is None else branch.stop.value,
    }
    if branch.stop_detail:
        line["stop_detail"] = branch.stop_detail
    if branch.score is not None:
        if branch.score.value != branch.reward:
            line["score"] = branch.score.value
        if branch.score.components:
            line["components"] = dict(branch.score.components)
        if branch.score.info is not None:
            line["info"] = branch.score.info
        if branch.score.missing_reason is not None:
            line["missing_reason"] = branch.score.missing_reason
    return line


def _content(prompt: str | Chat) -> Any:
    if isinstance(prompt, str):
        return prompt
    return [{"role": message.role, "content": message.content} for message in prompt]
