"""From what a trainer is given (names, objects, tokenizers, `model_config`) to one agent each."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from antiphon.clients.types import FieldError
from antiphon.learner.config.magrpo import MAGRPOConfig, resolve_num_agents, stated_num_agents
from antiphon.services.common.models import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DEFAULT_NUM_AGENTS = 2
"""`num_agents` of a trainer that says nothing; it then contradicts nothing."""
_MODEL_CONFIG_KEYS = frozenset(
    {"torch_dtype", "dtype", "attn_implementation", "model_kwargs", "special_tokens"}
)


def agent_sources(
    agent_model: object, agents: object, num_agents: int, args: MAGRPOConfig
) -> list[Any]:
    """The name or model object of every agent.

    Args:
        agent_model: A name for all agents, or None.
        agents: A list of names or of model objects, or None.
        num_agents: As given to the trainer.
        args: The settings, which may state a number too.

    Raises:
        FieldError: Neither or both are given so that they contradict, or numbers contradict.
    """
    if agents is not None and (
        isinstance(agents, (str, bytes)) or not isinstance(agents, Sequence)
    ):
        raise FieldError("agents", type(agents).__name__, "a list of model objects or names")
    if agent_model is None and agents is None:
        raise FieldError("agent_model and agents", "neither", "one of them")
    if agent_model is not None and not isinstance(agent_model, str):
        raise FieldError(
            "agent_model",
            type(agent_model).__name__,
            "a name or path; give model objects as agents=[...], one object per agent",
        )
    count = resolve_num_agents(
        {
            "agents": None if agents is None else len(agents),
            "num_agents": None if num_agents == DEFAULT_NUM_AGENTS else num_agents,
            "args.num_agents": stated_num_agents(args),
        }
        if agents is not None or num_agents != DEFAULT_NUM_AGENTS or stated_num_agents(args)
        else {"num_agents": num_agents}
    )
    if agents is None:
        return [agent_model] * count
    for number, agent in enumerate(agents):
        if agent_model is not None and agent != agent_model:
            raise FieldError(
                f"agents[{number}]", _short(agent), f"{agent_model!r}, as agent_model says"
            )
        if not isinstance(agent, str) and not hasattr(agent, "get_input_embeddings"):
            raise FieldError(
                f"agents[{number}]",
                _short(agent),
                "a model's name, or a model of transformers",
            )
        if isinstance(agent, str) != isinstance(agents[0], str):
            raise FieldError(f"agents[{number}]", _short(agent), "all names, or all model objects")
    return list(agents)


def one_source(
    agent_model: object, agents: object, num_agents: int, args: MAGRPOConfig
) -> tuple[Any, int]:
    """The one model that plays all agents, a name or an object, and how many it plays.

    Args:
        agent_model: Its name, or None.
        agents: A list of it alone, or of it once per agent; or None.
        num_agents: As given to the trainer.
        args: The settings, which may state a number too.

    Raises:
        FieldError: There are several models, or numbers contradict.
    """
    listed = agents if isinstance(agents, Sequence) and not isinstance(agents, str) else ()
    several = len(listed) if len(listed) > 1 else None
    stated = {
        "agents": several,
        "num_agents": None if num_agents == DEFAULT_NUM_AGENTS else num_agents,
        "args.num_agents": stated_num_agents(args),
    }
    said_nothing = all(count is None for count in stated.values())
    count = DEFAULT_NUM_AGENTS if said_nothing else resolve_num_agents(stated)
    unstated = args.replace(num_agents=several or 1)
    sources = agent_sources(agent_model, agents, several or 1, unstated)
    for number, source in enumerate(sources):
        if source is not sources[0] and source != sources[0]:
            raise FieldError(
                f"agents[{number}]", "another model than agents[0]", "one model for all agents"
            )
    return sources[0], count


def load_agents(sources: Sequence[Any], model_config: Mapping[str, Any]) -> list[PreTrainedModel]:
    """The models of all agents: loaded where a source is a name, else the objects themselves."""
    keywords = model_keywords(model_config)
    return [_load(source, keywords) if isinstance(source, str) else source for source in sources]


def model_keywords(model_config: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of `from_pretrained`, from CoMLRL's `model_config`.

    Raises:
        FieldError: A key is unknown, or a dtype is.
    """
    for key in model_config:
        if key not in _MODEL_CONFIG_KEYS:
            raise FieldError(
                f"model_config[{key!r}]", "an unknown key", ", ".join(sorted(_MODEL_CONFIG_KEYS))
            )
    keywords = dict(model_config.get("model_kwargs") or {})
    dtype = keywords.pop("torch_dtype", None) or keywords.pop("dtype", None)
    dtype = model_config.get("torch_dtype") or model_config.get("dtype") or dtype
    if dtype is not None:
        keywords["dtype"] = _dtype(dtype)
    if "attn_implementation" in model_config:
        keywords["attn_implementation"] = model_config["attn_implementation"]
    keywords.setdefault("attn_implementation", "sdpa")
    if keywords["attn_implementation"] is None:
        del keywords["attn_implementation"]
    return keywords


def resolve_tokenizers(
    tokenizer: Any, sources: Sequence[Any], model_config: Mapping[str, Any]
) -> list[PreTrainedTokenizerBase]:
    """One tokenizer per agent; the user's objects are left as they are.

    Args:
        tokenizer: One for all agents, one per agent, or None where the sources are names.
        sources: Names or model objects.
        model_config: Its `special_tokens` are added to copies.

    Raises:
        FieldError: There is none for a model object, or another number than agents.
    """
    if tokenizer is None:
        if not all(isinstance(source, str) for source in sources):
            raise FieldError("tokenizer", "nothing", "a tokenizer, as agents are model objects")
        tokenizers = [load_tokenizer(source) for source in sources]
    elif isinstance(tokenizer, (list, tuple)):
        if len(tokenizer) != len(sources):
            raise FieldError(
                "tokenizer",
                f"{len(tokenizer)} of them",
                f"one, or {len(sources)}, one per agent",
            )
        tokenizers = list(tokenizer)
    else:
        tokenizers = [tokenizer] * len(sources)
    if special := model_config.get("special_tokens"):
        tokenizers = [copy.deepcopy(one) for one in tokenizers]
        for one in tokenizers:
            one.add_special_tokens(special)
    return tokenizers


def check_vocabulary(
    agent: int, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Refuse a tokenizer that writes ids which the model does not have.

    Raises:
        FieldError: Naming both sizes.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise FieldError(
            f"tokenizer of agent {agent}",
            f"{len(tokenizer)} tokens",
            f"{rows} at most, as the model has; call model.resize_token_embeddings(len(tokenizer))",
        )


def model_name(source: Any) -> str:
    """What people call a model: its name or path, else its kind."""
    if isinstance(source, str):
        return source
    config = getattr(source, "config", None)
    name = getattr(config, "_name_or_path", "") or getattr(config, "model_type", "")
    return str(name or type(source).__name__)


def _load(source: str, keywords: Mapping[str, Any]) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    from antiphon.services.common.models import load_model

    if source.endswith(".gguf"):
        return load_model(source, dtype=keywords.get("dtype", torch.float32))
    return AutoModelForCausalLM.from_pretrained(source, **keywords)


def _dtype(dtype: Any) -> torch.dtype | str:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return "auto"
    known = getattr(torch, str(dtype).removeprefix("torch."), None)
    if not isinstance(known, torch.dtype):
        raise FieldError("model_config['torch_dtype']", repr(dtype), 'a dtype such as "bfloat16"')
    return known


def _short(value: object) -> str:
    return repr(value) if isinstance(value, str) else type(value).__name__
