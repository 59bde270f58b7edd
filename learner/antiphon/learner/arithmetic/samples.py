"""From a tree to what the agents train on: one sample per node and agent.

A sample is one group: one prompt of one agent at one node with its completions. Token ids,
log-probabilities and kept sizes are those that came from the engine; nothing is encoded again.
Nodes come in pre-order of the tree (a node, then its children in order of joint action).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.clients.types import FieldError
from antiphon.learner.arithmetic.advantages import group_advantages
from antiphon.learner.arithmetic.returns import present_mean, trained_returns, tree_returns
from antiphon.learner.rollout.tree import Node, Path


@dataclass(frozen=True)
class TrainedCompletion:
    """A completion of C tokens, the end token included.

    `logprobs` and `kept_sizes` [C] are the engine's, `full_logprobs` [C] where they were asked
    for, else empty; `reference_logprobs` [C] are the reference policy's under the full softmax at
    temperature 1 where one is held, else empty. `return_` is what the advantage is made of.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    kept_sizes: tuple[int, ...]
    return_: float
    advantage: float
    full_logprobs: tuple[float, ...] = ()
    reference_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True)
class TrainingSample:
    """What one agent trains on at one node.

    `completions` are those that have a return, `mean_reward` and `mean_return` means over the
    node's joint actions that have one, `oldest_version` the lowest weights version that any of
    the node's tokens was sampled under, `staleness` the publishes between that version and the
    moment when the node enters the buffer.
    """

    agent: int
    turn: int
    task_id: str
    row: int
    path: Path
    prompt_token_ids: tuple[int, ...]
    completions: tuple[TrainedCompletion, ...]
    dead: bool
    mean_reward: float | None
    mean_return: float | None
    oldest_version: int
    staleness: int = 0


def training_samples(
    root: Node,
    *,
    num_agents: int,
    discount: float,
    mode: str,
    normalize: bool,
    reference_kl_coef: float = 0.0,
    published: Sequence[int] | None = None,
) -> list[list[TrainingSample]]:
    """Samples of every agent, [N][nodes in pre-order].

    Args:
        root: A whole tree.
        num_agents: N.
        discount: Weight of the next turn's mean return.
        mode: Advantage mode (advantages.AdvantageMode).
        normalize: Whether advantages are normalised.
        reference_kl_coef: Weight of the reference KL in the returns (returns.trained_returns).
        published: The version of each agent's weights that is published; None where every node is
            as new as can be.

    Raises:
        FieldError: A node is not one of `num_agents` agents, or holds more than one prompt per
            agent, or a completion's token ids, log-probabilities and kept sizes differ in length.
    """
    returns = tree_returns(root, discount)
    settings = _Settings(mode, normalize, reference_kl_coef, published)
    samples: list[list[TrainingSample]] = [[] for _ in range(num_agents)]
    for node in root.walk():
        if len(node.prompts) != num_agents or len(node.completions) != num_agents:
            raise FieldError(
                f"node {node.task.id}{list(node.path)}",
                f"{len(node.prompts)} prompts, completions of {len(node.completions)} agents",
                f"{num_agents} of each (num_agents)",
            )
        for agent in range(num_agents):
            samples[agent].append(_sample(node, returns[node.path], agent, settings))
    return samples


@dataclass(frozen=True)
class _Settings:
    mode: str
    normalize: bool
    reference_kl_coef: float
    published: Sequence[int] | None


def _sample(
    node: Node, joint_returns: Sequence[float | None], agent: int, settings: _Settings
) -> TrainingSample:
    _check_completions(node, agent)
    returns = trained_returns(node, joint_returns, agent, settings.reference_kl_coef)
    group = group_advantages(returns, settings.mode, settings.normalize)
    references = node.references[agent] if node.references else ()
    completions = tuple(
        TrainedCompletion(
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            kept_sizes=completion.kept_sizes,
            full_logprobs=completion.full_logprobs,
            return_=return_,
            advantage=advantage,
            reference_logprobs=references[g].logprobs if references else (),
        )
        for g, (completion, return_, advantage) in enumerate(
            zip(node.completions[agent], returns, group.values, strict=True)
        )
        if return_ is not None and advantage is not None
    )
    versions = [
        span.weights_version
        for completion in node.completions[agent]
        for span in completion.weights_spans
    ]
    oldest = min(versions, default=0)
    return TrainingSample(
        agent=agent,
        turn=node.turn,
        task_id=node.task.id,
        row=node.row,
        path=node.path,
        prompt_token_ids=node.prompts[agent].token_ids,
        completions=completions,
        dead=group.dead,
        mean_reward=node.mean_reward,
        mean_return=present_mean(joint_returns),
        oldest_version=oldest,
        staleness=0 if settings.published is None else settings.published[agent] - oldest,
    )


def _check_completions(node: Node, agent: int) -> None:
    """A group is one prompt, and a token has one log-probability and one kept size."""
    prompt_token_ids = node.prompts[agent].token_ids
    for g, completion in enumerate(node.completions[agent]):
        where = f"node {node.task.id}{list(node.path)} completions[{agent}][{g}]"
        if completion.prompt_token_ids != prompt_token_ids:
            raise FieldError(
                f"{where}.prompt_token_ids",
                completion.prompt_token_ids,
                f"{prompt_token_ids}, the node's prompt of agent {agent}",
            )
        length = len(completion.token_ids)
        if length == 0:
            raise FieldError(f"{where}.token_ids", "none", "at least the end token")
        for name in ("logprobs", "kept_sizes"):
            if len(getattr(completion, name)) != length:
                raise FieldError(
                    f"{where}.{name}", len(getattr(completion, name)), f"{length}, one per token"
                )
