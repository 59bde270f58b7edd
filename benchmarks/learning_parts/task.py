"""The task: two agents list the four words of a topic between them, each word once, in two turns.

Imported on both sides; needs nothing but Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

TOPICS = {
    "sea": ("wave", "salt", "fish", "ship"),
    "farm": ("hay", "cow", "barn", "plough"),
    "town": ("street", "shop", "tower", "tram"),
}
WORDS = tuple(word for words in TOPICS.values() for word in words)
ROLES = ("first", "second")
OTHER_WORDS = (*TOPICS, *ROLES, ":", "again", "with")
COST = 0.5
"""What a word that is off the topic or listed already costs; a found one earns 1."""

REWARD_BATCH = 64
"""Joint actions per call of the reward function, where a trainer offers more than one."""

Side = Literal["antiphon", "comlrl"]


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled; `top_k` None is off."""

    temperature: float
    top_p: float
    top_k: int | None


PLAIN = Sampling(1.0, 1.0, None)
DEFAULTS = Sampling(0.6, 0.6, 50)


@dataclass(frozen=True)
class Arm:
    """One way of training that is compared."""

    side: Side
    sampling: Sampling
    logprob_support: Literal["sampled", "full"] | None = None


ARMS = {
    "comlrl-plain": Arm("comlrl", PLAIN),
    "antiphon-plain": Arm("antiphon", PLAIN, "sampled"),
    "comlrl-defaults": Arm("comlrl", DEFAULTS),
    "antiphon-defaults-sampled": Arm("antiphon", DEFAULTS, "sampled"),
    "antiphon-defaults-full": Arm("antiphon", DEFAULTS, "full"),
}


@dataclass(frozen=True)
class Settings:
    """What all arms have in common."""

    prompts: int = 100
    num_generations: int = 8
    num_turns: int = 2
    max_new_tokens: int = 8
    rollout_buffer_size: int = 2
    learning_rate: float = 5e-4

    @property
    def joint_actions_per_turn(self) -> tuple[int, ...]:
        """Joint actions of one prompt at each turn; no branch ends early."""
        return tuple(self.num_generations**turn for turn in range(1, self.num_turns + 1))

    @property
    def joint_actions_per_prompt(self) -> int:
        return sum(self.joint_actions_per_turn)

    def trainer_options(self, sampling: Sampling) -> dict[str, Any]:
        """What both `MAGRPOConfig`s are told; the rest stays at its default, which is the same."""
        return {
            "num_train_epochs": 1,
            "agent_learning_rate": self.learning_rate,
            "num_agents": len(ROLES),
            "num_generations": self.num_generations,
            "max_new_tokens": self.max_new_tokens,
            "num_turns": self.num_turns,
            "rollout_buffer_size": self.rollout_buffer_size,
            "early_termination_threshold": None,
            "external_prompt_passthrough": True,
            "eval_interval": 0,
            **asdict(sampling),
        }


SETTINGS = Settings()


def rows(settings: Settings) -> list[dict[str, str]]:
    """The dataset: the topics in turn."""
    topics = list(TOPICS)
    return [{"prompt": topics[i % len(topics)]} for i in range(settings.prompts)]


def score(topic: str, answers: Sequence[str]) -> float:
    """Joint reward: found words of the topic less half of all others listed, over the topic's four.

    1 where the agents together list every word once; 0.5 where both list all four.
    """
    listed = [word for answer in answers for word in answer.split()]
    found = set(listed) & set(TOPICS[topic])
    return (len(found) - COST * (len(listed) - len(found))) / len(TOPICS[topic])


def reward_function(told: Callable[[float], None]) -> Callable[..., list[float]]:
    """A reward function as both trainers take it; `told` hears every reward."""

    def reward(
        first: list[str], second: list[str], *, batch_items: list[dict[str, str]]
    ) -> list[float]:
        rewards = [
            score(item["prompt"], answers)
            for *answers, item in zip(first, second, batch_items, strict=True)
        ]
        for value in rewards:
            told(value)
        return rewards

    return reward


def prompt_of(role: int, topic: str, answers: tuple[str, ...] | None = None) -> str:
    """An agent's prompt; later it reads its own answer and the other's."""
    if answers is None:
        return f"{ROLES[role]} {topic} :"
    own, other = answers[role], answers[1 - role]
    return " ".join(f"{ROLES[role]} {topic} again {own} with {other} :".split())


def formatter(role: int) -> Callable[..., str]:
    """Writes an agent's first prompt."""
    return lambda item: prompt_of(role, item["prompt"])


def transition(prompt: str, agent_completions: list[str], num_agents: int, **_: Any) -> list[str]:
    """What the agents are told after the first turn."""
    return [prompt_of(role, prompt, tuple(agent_completions)) for role in range(num_agents)]
