"""Settings that hold for all agents, or are a list with one per agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Discriminator, Tag

from antiphon.clients.types import FieldError

T = TypeVar("T")


def _which(value: object) -> str:
    return "list" if isinstance(value, (list, tuple)) else "value"


PerAgent = Annotated[
    Annotated[T, Tag("value")] | Annotated[tuple[T, ...], Tag("list")], Discriminator(_which)
]


def of_agent(value: T | tuple[T, ...], agent: int) -> T:
    """An agent's value of a `PerAgent` setting."""
    return value[agent] if isinstance(value, tuple) else value


def check_per_agent(
    name: str, value: Any, num_agents: int, policies: Sequence[Sequence[int]]
) -> None:
    """Refuse a list of another length, or different values for agents of one policy.

    Args:
        name: The setting.
        value: Its value.
        num_agents: Number of agents, N.
        policies: The agents that each policy plays.

    Raises:
        FieldError: Names the setting.
    """
    if not isinstance(value, tuple):
        return
    if len(value) != num_agents:
        raise FieldError(name, f"{len(value)} of them", f"one, or {num_agents}, one per agent")
    for agents in policies:
        own = [value[agent] for agent in agents]
        if any(one != own[0] for one in own):
            raise FieldError(name, own, "one value, as shared_policy has one optimiser")
