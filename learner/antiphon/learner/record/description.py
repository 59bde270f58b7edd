"""What a run was told, as plain values: kept with the run and with every checkpoint of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antiphon.clients.endpoint import Endpoint
from antiphon.learner.run.setup import AgentSetup, RunSetup
from antiphon.services.common.function_arguments import function_name
from antiphon.services.common.models import tokenizer_fingerprint


def described(setup: RunSetup) -> dict[str, Any]:
    """What a run was told, as JSON values."""
    processor = setup.reward_processor
    return {
        "magrpo": setup.config.replace(num_agents=setup.num_roles).model_dump(mode="json"),
        "agents": [_agent(agent) for agent in setup.agents],
        "reward": _who(setup.reward),
        "transition": _who(setup.transition),
        "user_code": {
            "reward_processor": None if processor is None else function_name(processor),
            "formatters": list(setup.prompts.names),
            "centralized_adapter": None if setup.centralized is None else setup.centralized.name,
        },
        "dataset": {
            "rows": setup.tasks.length,
            "columns": list(setup.tasks.columns()),
            "fingerprint": setup.tasks.fingerprint(),
        },
    }


def _agent(agent: AgentSetup) -> dict[str, Any]:
    return {
        "model": agent.name,
        "tokenizer": tokenizer_fingerprint(agent.tokenizer).hex(),
        "learning_rate": agent.learning_rate,
        "addresses": [endpoint.address for endpoint in agent.endpoints],
    }


def _who(given: Callable[..., Any] | Endpoint | None) -> dict[str, str]:
    if given is None:
        return {}
    if isinstance(given, Endpoint):
        return {"address": given.address}
    return {"function": function_name(given)}
