"""Trees as rows of a table, one joint action per row; what the columns of a rollout file mean.

Lists named after agents hold one entry per agent, agent 0 first [N]; C is the number of tokens of
that agent's completion. In `cross` a completion is in several rows, as it is in several joint
actions.

    phase              train or eval
    epoch              counted from 1
    prompts_before     prompts trained before the rollout batch that holds the tree
    row, task          row of the dataset and id of the task
    turn, path         counted from 1; the joint action taken at each turn before
    joint_action, id   its number within the node, and its id on the wire
    samples            which completion of each agent it is made of [N]
    prompts, chat      what each agent was asked [N]; messages (chat true) are written as JSON
    texts              what each agent answered [N]
    role_texts         the parts that a centralised model's joint answer was split into; else empty
    reward             after the reward processor; null where it is missing
    score, components  what the reward service gave, with its named components
    info               the score's JSON
    missing_reason     why the reward service gave no score
    return             R = reward + discount * mean(returns of the child node)
    stop, stop_detail  why there is no child node; null where there is one
    agent_returns      the return of each agent's completion [N], the mean over its joint actions
    reference_kls      KL of each agent's completion to its reference [N]; empty where none is held
    advantages         of each agent's completion [N]
    dead               whether each agent's group taught nothing [N]
    finish             why each completion ended [N]
    token_ids          sampled tokens, the end token included [N][C]
    logprobs           the engine's, under the distribution sampled from [N][C]
    weights_versions   versions sampled under, oldest first [N][...]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from antiphon.clients.types import Chat
from antiphon.learner.record.figures import NodeFigures, weights_versions

TRAIN, EVAL = "train", "eval"

SCHEMA = pa.schema(
    [
        ("phase", pa.string()),
        ("epoch", pa.int32()),
        ("prompts_before", pa.int64()),
        ("row", pa.int64()),
        ("task", pa.string()),
        ("turn", pa.int32()),
        ("path", pa.list_(pa.int32())),
        ("joint_action", pa.int32()),
        ("id", pa.string()),
        ("samples", pa.list_(pa.int32())),
        ("prompts", pa.list_(pa.string())),
        ("chat", pa.list_(pa.bool_())),
        ("texts", pa.list_(pa.string())),
        ("role_texts", pa.list_(pa.string())),
        ("reward", pa.float64()),
        ("score", pa.float64()),
        ("components", pa.map_(pa.string(), pa.float64())),
        ("info", pa.string()),
        ("missing_reason", pa.string()),
        ("return", pa.float64()),
        ("stop", pa.string()),
        ("stop_detail", pa.string()),
        ("agent_returns", pa.list_(pa.float64())),
        ("reference_kls", pa.list_(pa.float64())),
        ("advantages", pa.list_(pa.float64())),
        ("dead", pa.list_(pa.bool_())),
        ("finish", pa.list_(pa.string())),
        ("token_ids", pa.list_(pa.list_(pa.int32()))),
        ("logprobs", pa.list_(pa.list_(pa.float32()))),
        ("weights_versions", pa.list_(pa.list_(pa.int64()))),
    ]
)


def rollout_table(
    nodes: Iterable[NodeFigures], *, phase: str, epoch: int, prompts_before: int
) -> pa.Table:
    """Write down nodes, in the order given.

    Args:
        nodes: Nodes and their numbers, each tree in pre-order.
        phase: `TRAIN` or `EVAL`.
        epoch: Counted from 1.
        prompts_before: Prompts trained before this rollout batch.
    """
    where = {"phase": phase, "epoch": epoch, "prompts_before": prompts_before}
    rows = [{**where, **row} for figures in nodes for row in _rows(figures)]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _rows(figures: NodeFigures) -> Iterator[dict[str, Any]]:
    node = figures.node
    shared = {
        "row": node.row,
        "task": node.task.id,
        "turn": node.turn,
        "path": list(node.path),
        "prompts": [_content(prompt.content) for prompt in node.prompts],
        "chat": [not isinstance(prompt.content, str) for prompt in node.prompts],
        "dead": [group.dead for group in figures.advantages],
    }
    for index, branch in enumerate(node.branches):
        picked = list(enumerate(branch.samples))
        completions = [node.completions[agent][sample] for agent, sample in picked]
        score = branch.score
        yield {
            **shared,
            "joint_action": index,
            "id": branch.joint_action_id,
            "samples": list(branch.samples),
            "texts": [completion.text for completion in completions],
            "role_texts": branch.role_texts,
            "reward": branch.finite_reward,
            "score": None if score is None else score.value,
            "components": [] if score is None else list(score.components.items()),
            "info": None if score is None or score.info is None else json.dumps(score.info),
            "missing_reason": None if score is None else score.missing_reason,
            "return": figures.returns[index],
            "stop": None if branch.stop is None else branch.stop.value,
            "stop_detail": branch.stop_detail or None,
            "agent_returns": [figures.agent_returns[agent][sample] for agent, sample in picked],
            "reference_kls": [node.references[agent][s].kl for agent, s in picked]
            if node.references
            else [],
            "advantages": [figures.advantages[agent].values[sample] for agent, sample in picked],
            "finish": [completion.finish_reason.value for completion in completions],
            "token_ids": [completion.token_ids for completion in completions],
            "logprobs": [completion.logprobs for completion in completions],
            "weights_versions": [weights_versions(completion) for completion in completions],
        }


def _content(prompt: str | Chat) -> str:
    if isinstance(prompt, str):
        return prompt
    messages = [{"role": message.role, "content": message.content} for message in prompt]
    return json.dumps(messages, ensure_ascii=False)
