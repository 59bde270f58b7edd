"""A task for tiny models: a reward that tells completions apart, and a transition."""

from __future__ import annotations

from collections.abc import Callable, Sequence

PROMPTS = ["a red cat sings", "two dog replies b"]


def reward(texts: Sequence[str]) -> float:
    """Weighs the agents' words differently, and some words more than others."""
    total = 0.0
    for agent, text in enumerate(texts):
        words = text.split()
        total += (0.11 + 0.05 * agent) * len(words) + 0.31 * words.count("a")
        total += 0.013 * sum(map(len, words))
    return total


def patchy_reward(texts: Sequence[str]) -> float | None:
    """The same, but some joint actions have none."""
    words = sum(len(text.split()) for text in texts)
    return None if words % 4 == 3 else reward(texts)


def next_prompts(prompts: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Every agent is told the first two words of all answers."""
    heads = " ".join(" ".join(text.split()[:2]) for text in texts)
    return [f"again {prompt} {heads}" for prompt in prompts]


def as_reward_function(
    score: Callable[[Sequence[str]], float | None], calls: list[tuple[str, ...]]
) -> Callable[..., list[float | None]]:
    """A reward function as a user writes it; `calls` collects what it was given."""

    def reward_function(*completions: list[str]) -> list[float | None]:
        joint_actions = list(zip(*completions, strict=True))
        calls.extend(joint_actions)
        return [score(texts) for texts in joint_actions]

    return reward_function


def transition(
    prompt: str,
    agent_completions: list[str],
    num_agents: int,
    prompt_history_per_agent: list[list[str]],
    response_history_per_agent: list[list[str]],
) -> list[str]:
    """`next_prompts` as a user writes it, from the histories."""
    assert len(agent_completions) == num_agents
    prompts = [history[-1] for history in prompt_history_per_agent]
    assert all(history[0] == prompt for history in prompt_history_per_agent)
    texts = [history[-1] for history in response_history_per_agent]
    assert texts == list(agent_completions)
    return next_prompts(prompts, texts)
