"""Trees and training samples made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.clients.types import Completion, FinishReason, Task, WeightsSpan
from antiphon.learner.arithmetic.samples import TrainedCompletion, TrainingSample
from antiphon.learner.rollout.tree import AgentPrompt, Branch, Node, joint_indices

TASK = Task("7", {"prompt": "p"})


def make_completion(
    prompt: Sequence[int],
    tokens: Sequence[int],
    *,
    sample: int = 0,
    versions: Sequence[int] = (1,),
) -> Completion:
    """A completion whose token t has log-probability -(t + 1) / 8 and kept size t + 1."""
    return Completion(
        prompt_index=0,
        sample_index=sample,
        text=" ".join(map(str, tokens)),
        token_ids=tuple(tokens),
        logprobs=tuple(-(t + 1) / 8 for t in range(len(tokens))),
        kept_sizes=tuple(t + 1 for t in range(len(tokens))),
        finish_reason=FinishReason.END_TOKEN,
        prompt_token_ids=tuple(prompt),
        weights_spans=tuple(WeightsSpan(t, v) for t, v in enumerate(versions)),
        instance_id="i",
        boot_id="b",
    )


def make_node(
    rewards: Sequence[float | None],
    *,
    num_agents: int = 2,
    num_generations: int | None = None,
    mode: str = "aligned",
    children: Mapping[int, Node] | None = None,
    path: tuple[int, ...] = (),
) -> Node:
    """A node whose joint actions have `rewards`; agent a's prompt is [10 + a], its completion g is
    [20 + g, 2]. Children are given by joint action and must carry their own path.
    """
    generations = len(rewards) if num_generations is None else num_generations
    prompts = tuple(AgentPrompt(f"prompt {a}", (10 + a,)) for a in range(num_agents))
    return Node(
        task=TASK,
        row=7,
        path=path,
        turn=len(path) + 1,
        prompts=prompts,
        completions=tuple(
            tuple(
                make_completion(prompt.token_ids, (20 + g, 2), sample=g) for g in range(generations)
            )
            for prompt in prompts
        ),
        branches=[
            Branch(samples=samples, joint_action_id=f"{path}{j}", reward=reward)
            if not children or j not in children
            else Branch(
                samples=samples, joint_action_id=f"{path}{j}", reward=reward, child=children[j]
            )
            for j, (samples, reward) in enumerate(
                zip(joint_indices(mode, num_agents, generations), rewards, strict=True)
            )
        ],
    )


def make_sample(
    prompt: Sequence[int],
    completions: Sequence[tuple[Sequence[int], float]],
    *,
    logprobs: Sequence[Sequence[float]] | None = None,
    kept_sizes: Sequence[Sequence[int]] | None = None,
    agent: int = 0,
    turn: int = 1,
    path: tuple[int, ...] = (),
    task_id: str = "7",
    dead: bool = False,
) -> TrainingSample:
    """A sample of completions given as (token ids, advantage); log-probabilities 0 and kept sizes
    1 where none are given.
    """
    return TrainingSample(
        agent=agent,
        turn=turn,
        task_id=task_id,
        row=int(task_id),
        path=path,
        prompt_token_ids=tuple(prompt),
        completions=tuple(
            TrainedCompletion(
                token_ids=tuple(tokens),
                logprobs=tuple(logprobs[i]) if logprobs else (0.0,) * len(tokens),
                kept_sizes=tuple(kept_sizes[i]) if kept_sizes else (1,) * len(tokens),
                return_=advantage,
                advantage=advantage,
            )
            for i, (tokens, advantage) in enumerate(completions)
        ),
        dead=dead,
        mean_reward=0.0,
        mean_return=0.0,
        oldest_version=1,
    )
