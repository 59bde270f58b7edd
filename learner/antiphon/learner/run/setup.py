"""Everything that a run is made of, resolved and checked, before anything is started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.types import FieldError
from antiphon.learner.config.magrpo import MAGRPOConfig, TrackerName
from antiphon.learner.config.optimization import PER_AGENT
from antiphon.learner.config.per_agent import check_per_agent
from antiphon.learner.config.prompts import check_prompt_settings
from antiphon.learner.data.formatters import Prompts
from antiphon.learner.data.tasks import Tasks
from antiphon.learner.evaluation.setup import EvaluationSetup, check_evaluation
from antiphon.learner.policy.adapters import base_of, is_adapted, merged
from antiphon.learner.record.progress import Progress
from antiphon.learner.record.trackers.opening import check_installed
from antiphon.learner.record.trackers.settings import WandbConfig
from antiphon.learner.rollout.prompt_encoding import prompt_encoders
from antiphon.learner.rollout.scoring import RewardProcessor
from antiphon.services.common.server_settings import ServerSettings
from antiphon.services.common.user_functions import RewardFunction, TransitionFunction

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from antiphon.learner.distributed.leader import Leader
    from antiphon.learner.rollout.centralized import Centralized


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class AgentSetup:
    """One agent: the model to train in place, its tokenizer, and where it is served.

    Without endpoints this run starts a generation service for it. `learning_rate` None is the
    config's.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    endpoints: tuple[Endpoint, ...] = ()
    learning_rate: float | None = None


UserFunction = Callable[..., Any]


@dataclass(frozen=True)
class RunSetup:
    """A run that is ready to start.

    `reward` and `transition` are the user's functions, run in this process, or where a service is.
    `open_progress` opens the display when the run starts. `threads` cores are shared out: among the
    services that this run starts while they generate, among the updates while those run.
    `generation_arguments` go to every service that it starts. `merge_adapters` saves models with
    their adapters in their weights too.
    `trackers` are told the metrics, as `wandb` says. With `centralized` the one agent writes the
    joint answer of several roles. `evaluation` None evaluates nothing. `ranks` hold the policies
    where several processes do; the agents' models are then without their weights.
    """

    config: MAGRPOConfig
    agents: tuple[AgentSetup, ...]
    tasks: Tasks
    prompts: Prompts
    reward: UserFunction | Endpoint
    transition: UserFunction | Endpoint | None
    open_progress: Callable[[], Progress]
    reward_processor: RewardProcessor | None = None
    server: ServerSettings = field(default_factory=lambda: ServerSettings.model_validate({}))
    threads: int = field(default_factory=usable_cores)
    save_models: bool = False
    merge_adapters: bool = False
    generation_arguments: tuple[str, ...] = ()
    trackers: tuple[TrackerName, ...] = ()
    wandb: WandbConfig = field(default_factory=WandbConfig)
    centralized: Centralized | None = None
    evaluation: EvaluationSetup | None = None
    ranks: Leader | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot train, before anything is started.

        Raises:
            FieldError: Names what is missing, contradicts or is not offered.
            UserFunctionError: A function takes other parameters than it will get.
        """
        check_installed(self.trackers)
        _check_models(self.agents, shared=self.config.shared_policy)
        self._check_settings_of_agents()
        if self.centralized is not None and (self.config.shared_policy or self.num_agents != 1):
            raise FieldError(
                "centralized_adapter",
                "shared_policy" if self.config.shared_policy else f"{self.num_agents} models",
                "one model that writes the joint answer of all roles",
            )
        if self.config.num_turns > 1 and self.transition is None:
            raise FieldError(
                "external_transition",
                "nothing",
                f"a function or service that writes later prompts, as num_turns is "
                f"{self.config.num_turns}",
            )
        check_prompt_settings(self.config, self.num_agents)
        prompt_encoders(self.config, [agent.tokenizer for agent in self.agents])
        self.tasks.check(needed=self.prompts.needed_columns)
        check_evaluation(self.evaluation, self.config, self.prompts.needed_columns)
        if not isinstance(self.reward, Endpoint):
            RewardFunction(self.reward, self.num_roles, self.config.reward_batch_size)
        if self.transition is not None and not isinstance(self.transition, Endpoint):
            TransitionFunction(self.transition, self.num_roles)

    @property
    def num_agents(self) -> int:
        """N."""
        return len(self.agents)

    @property
    def num_roles(self) -> int:
        """Agents as reward, transition and formatters see them: N, or the centralised roles."""
        return self.num_agents if self.centralized is None else self.centralized.num_roles

    @property
    def policies(self) -> tuple[tuple[int, ...], ...]:
        """The agents that each policy plays."""
        return self.config.policies(self.num_agents)

    def learning_rate(self, agent: int) -> float:
        """Learning rate of an agent: its own, else the config's."""
        own = self.agents[agent].learning_rate
        return self.config.learning_rate(agent) if own is None else own

    def endpoints(self, agents: Sequence[int]) -> tuple[Endpoint, ...]:
        """Where a policy is served: the services of all its agents, each once."""
        given = [endpoint for agent in agents for endpoint in self.agents[agent].endpoints]
        return tuple({endpoint.address: endpoint for endpoint in given}.values())

    def _check_settings_of_agents(self) -> None:
        for name in PER_AGENT:
            check_per_agent(name, getattr(self.config, name), self.num_agents, self.policies)
        for agents in self.policies:
            rates = tuple(self.learning_rate(agent) for agent in agents)
            check_per_agent("agent_learning_rate", rates, len(rates), [range(len(rates))])

    @property
    def prompts_total(self) -> int:
        """Prompts of all epochs, 0 where the dataset does not know its length."""
        return (self.tasks.length or 0) * self.config.num_train_epochs


def _check_models(agents: Sequence[AgentSetup], *, shared: bool) -> None:
    """Refuse one model for several agents, or several where they share one policy."""
    if shared:
        for number, agent in enumerate(agents):
            if agent.model is not agents[0].model:
                raise FieldError(
                    f"agents[{number}]",
                    "another model than agents[0]",
                    "the same one, as shared_policy trains one set of weights: give one agent and "
                    "num_agents, or the same object for every agent",
                )
        return
    seen: dict[int, int] = {}
    for number, agent in enumerate(agents):
        first = seen.setdefault(id(agent.model), number)
        if first != number:
            raise FieldError(
                f"agents[{number}]",
                f"the same object as agents[{first}]",
                "a model object of its own for every agent, as each is trained in place; or "
                "shared_policy=True, to train one set of weights for all",
            )


def save_policies(setup: RunSetup, folder: Path) -> None:
    """Save the models as they are in `folder`/agent_0, agent_1, ...; a shared one once."""
    with _without_bars():
        for number, *_ in setup.policies:
            agent = setup.agents[number]
            model = agent.model if setup.ranks is None else setup.ranks.whole_model(number)
            save_agent(
                folder / f"agent_{number}", model, agent.tokenizer, merge=setup.merge_adapters
            )


@contextmanager
def _without_bars() -> Iterator[None]:
    """The library's bars would write over the display of the run."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def save_agent(
    folder: Path, model: Any, tokenizer: PreTrainedTokenizerBase, *, merge: bool = False
) -> None:
    """Save a trained model with its tokenizer.

    A model is to be loaded by `from_pretrained`. Of one with an adapter the adapter is saved, as
    peft loads it onto the base; with `merge` the model with the adapter in its weights too, in the
    folder `merged`. A model that was loaded from a GGUF file counts as quantised and would refuse;
    its weights are plain numbers by now, so that mark is taken off.

    Raises:
        FieldError: The adapter cannot be merged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    base = base_of(model)
    if getattr(base, "hf_quantizer", None) is not None:
        base.hf_quantizer = None
    if getattr(base.config, "quantization_config", None) is not None:
        del base.config.quantization_config
    if is_adapted(model):
        if merge:
            save_agent(folder / "merged", merged(model), tokenizer)
        model.save_pretrained(folder, save_embedding_layers=False)
    else:
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
