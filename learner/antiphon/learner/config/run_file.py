"""A whole run as a TOML file: `antiphon train run.toml`.

    [magrpo]                            the settings of MAGRPOConfig
    num_turns = 2

    [[agents]]                          one per agent, agent 0 first
    model = "HuggingFaceTB/SmolLM2-135M-Instruct"
    addresses = ["localhost:50051"]     its generation services; none: one is started here

    [reward]
    function = "tasks:reward"           or: address = "localhost:50061"

    [transition]
    function = "tasks:feedback"         or: address = "localhost:50062"

    [dataset]
    path = "prompts.jsonl"              or: prompts = ["...", "..."], or: name = "owner/dataset"

    [eval_dataset]                      tasks to evaluate on, as [dataset]; may be left out
    path = "held_out.jsonl"

Paths are taken from the working directory, where modules of functions are looked for too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from antiphon.clients.endpoint import Endpoint, Tls
from antiphon.clients.types import FieldError
from antiphon.learner.config.dataset import DatasetSettings
from antiphon.learner.config.magrpo import MAGRPOConfig, resolve_num_agents, stated_num_agents
from antiphon.learner.config.optimization import (
    PER_AGENT,
    Decay,
    Lora,
    Norm,
    SchedulerType,
    Steps,
)
from antiphon.learner.config.per_agent import check_per_agent, of_agent
from antiphon.learner.config.prompts import check_prompt_settings
from antiphon.learner.config.sharding import ShardingSettings
from antiphon.learner.record.trackers.settings import WandbConfig
from antiphon.services.common.server_settings import ServerSettings
from antiphon.services.common.settings import load_settings


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class AgentSettings(_Section):
    """`[[agents]]`: one agent."""

    model: str
    """Model to train: a hub name, a folder (`~` stands for the home directory), or a `.gguf`
    file."""
    gguf_file: str | None = None
    """A GGUF file within `model`."""
    tokenizer: str | None = None
    """Where its tokenizer is; none: with the model."""
    addresses: tuple[Endpoint, ...] = ()
    """Generation services of this agent, its replicas, or a single address; none: one is started on
    this machine."""
    device: str | None = None
    """Where the learner holds this agent's policy; none: what `magrpo.agent_devices` says."""
    learning_rate: float | None = Field(default=None, ge=0)
    """Its learning rate; none: `magrpo.agent_learning_rate`."""
    lr_scheduler_type: SchedulerType | None = None
    """Its schedule, where it is not `magrpo.lr_scheduler_type`."""
    warmup_steps: Steps | None = None
    """Its warm-up, where it is not `magrpo.warmup_steps`."""
    weight_decay: Decay = None
    """Its weight decay, where it is not `magrpo.weight_decay`."""
    max_grad_norm: Norm = None
    """Where its gradient is clipped, if not at `magrpo.max_grad_norm`; ``"none"`` nowhere."""
    trainable: bool | None = None
    """Whether it is trained or frozen, where it is not `magrpo.trainable`."""
    lora: Lora = None
    """Its LoRA adapter, where it is not `magrpo.lora`; ``"none"`` trains the whole model."""

    @field_validator("addresses", mode="before")
    @classmethod
    def _one_address(cls, value: object) -> object:
        return (value,) if isinstance(value, str | Mapping) else value

    @field_validator("model", "tokenizer")
    @classmethod
    def _home(cls, value: str | None) -> str | None:
        if not value or not value.startswith("~"):
            return value
        try:
            return str(Path(value).expanduser())
        except RuntimeError as error:
            raise ValueError(f"a path whose home directory is known ({error})") from error

    @property
    def tokenizer_source(self) -> str:
        """Where its tokenizer is."""
        return self.tokenizer or self.model


class GenerationSettings(_Section):
    """`[generation]`: the generation services that the run starts itself."""

    engine: Literal["transformers", "tgi", "vllm"] = "transformers"
    """What samples: the service itself, or text-generation-inference or vLLM."""
    options: tuple[str, ...] = ()
    """More options of `antiphon serve generation`, for example
    ``["--engine-command", "text-generation-launcher --model-id {model} --port {port}"]``."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """What is added to the command line of each."""
        engine = () if self.engine == "transformers" else ("--engine", self.engine)
        return (*engine, *self.options)


class FunctionSettings(_Section):
    """`[transition]`: who writes the next prompts."""

    function: str | None = None
    """Function to serve from this process, ``module:function``."""
    address: Endpoint | None = None
    """A service that already runs."""


class RewardSettings(FunctionSettings):
    """`[reward]`: who scores joint actions."""

    processor: str | None = None
    """Function from a raw reward to the one trained on, ``module:function``."""


class EvaluationSettings(_Section):
    """`[evaluation]`: metrics of your own; `magrpo.eval_interval` and so on say when."""

    logger: str | None = None
    """Function from the answers to one mapping of metrics each, ``module:function``."""
    aggregator: str | None = None
    """Function from those to the means that are told under `eval/`, ``module:function``."""


class CentralizedSettings(_Section):
    """`[centralized]`: one model writes the joint answer of all agents.

    There is one entry in `[[agents]]` then, and `magrpo.num_agents` says how many it answers for.
    """

    adapter: str | None = None
    """What makes the adapter that joins prompts and splits answers (a class, or a function without
    arguments), ``module:name``; none: the tags `<agent_0>` to `</agent_0>` and so on."""


class FormatterSettings(_Section):
    """`[formatters]`: what turns a row into an agent's prompt."""

    functions: str | tuple[str, ...] = ()
    """One function for all agents or one per agent, ``module:function``; none: the prompt
    column."""


class RunSettings(_Section):
    """`[run]`: where the run is kept and how it speaks."""

    directory: Path = Path("runs")
    """Folder that gets the run's folder."""
    name: str | None = None
    """Name of the run's folder; none: date and time. Where it is taken, a number is added."""
    save_models: bool = True
    """Save the trained models at the end, in `agent_0`, `agent_1`, ...; of one that is trained
    through LoRA the adapter."""
    merge_adapters: bool = False
    """Save models with their adapters in their weights too, in `agent_0/merged`, ..."""
    threads: int | None = Field(default=None, ge=1)
    """Cores to share out among the processes of this run; none: all that this process may use."""
    log_format: Literal["text", "json"] = "text"
    """Logs, progress and errors as lines for people, or as one JSON object a line."""
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    """Least severe logs that are shown."""


class CredentialSettings(_Section):
    """`[credentials]`: TLS and token for every address that states none of its own."""

    tls: Tls | None = None
    """Certificate files."""
    token_file: Path | None = None
    """File with the token that services want."""
    insecure: bool = False
    """Send the token without TLS; for closed networks."""


class RunConfig(_Section):
    """A whole run. Made by `load_run_config`, which also checks what sections say together."""

    magrpo: MAGRPOConfig = Field(default_factory=MAGRPOConfig)
    """How to train."""
    agents: tuple[AgentSettings, ...] = ()
    """The agents, agent 0 first."""
    generation: GenerationSettings = Field(default_factory=GenerationSettings)
    """The generation services that the run starts itself."""
    reward: RewardSettings = Field(default_factory=RewardSettings)
    """Who scores joint actions."""
    transition: FunctionSettings = Field(default_factory=FunctionSettings)
    """Who writes the prompts of later turns."""
    dataset: DatasetSettings = Field(default_factory=DatasetSettings)
    """Where the tasks come from."""
    eval_dataset: DatasetSettings | None = None
    """Where the tasks to evaluate on come from, as `[dataset]`; none: nothing is evaluated."""
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    """Metrics of your own."""
    formatters: FormatterSettings = Field(default_factory=FormatterSettings)
    """What turns a row into prompts."""
    run: RunSettings = Field(default_factory=RunSettings)
    """Where the run is kept."""
    centralized: CentralizedSettings | None = None
    """One model writes the joint answer of all agents; none: each agent answers by itself."""
    sharding: ShardingSettings = Field(default_factory=ShardingSettings)
    """How torchrun's processes hold the policies; of no effect in one process."""
    server: ServerSettings = Field(default_factory=lambda: ServerSettings.model_validate({}))
    """The learner's own service."""
    credentials: CredentialSettings = Field(default_factory=CredentialSettings)
    """How to reach services."""
    wandb: WandbConfig | None = None
    """How the run appears in Weights & Biases; turns it on unless `magrpo.trackers` lists
    others."""

    @property
    def num_agents(self) -> int:
        """Number of agents, N: those listed, or `magrpo.num_agents` where one model plays all."""
        return self.magrpo.num_agents if self._one_model else len(self.agents)

    @property
    def players(self) -> tuple[AgentSettings, ...]:
        """The settings of each agent that generates; one model may play several."""
        shared = self.magrpo.shared_policy and self._one_model
        return self.agents * self.num_agents if shared else self.agents

    @property
    def _one_model(self) -> bool:
        plays_all = self.magrpo.shared_policy or self.centralized is not None
        return plays_all and len(self.agents) == 1

    def endpoint(self, endpoint: Endpoint) -> Endpoint:
        """Give an address that states no TLS and no token the `[credentials]`.

        Raises:
            pydantic.ValidationError: The token would travel in plain text.
        """
        if endpoint.tls is not None or endpoint.token_file is not None:
            return endpoint
        return Endpoint(
            address=endpoint.address,
            tls=self.credentials.tls,
            token_file=self.credentials.token_file,
            insecure=endpoint.insecure or self.credentials.insecure,
        )

    def learning_rate(self, agent: int) -> float:
        """Learning rate of an agent."""
        own = self.players[agent].learning_rate
        return self.magrpo.learning_rate(agent) if own is None else own

    @property
    def training(self) -> MAGRPOConfig:
        """`[magrpo]` with what `[[agents]]` say of their own."""
        own: dict[str, Any] = {"num_agents": self.num_agents}
        for name in set(PER_AGENT) & set(AgentSettings.model_fields):
            if any(name in player.model_fields_set for player in self.players):
                common = getattr(self.magrpo, name)
                own[name] = tuple(
                    getattr(player, name)
                    if name in player.model_fields_set
                    else of_agent(common, number)
                    for number, player in enumerate(self.players)
                )
        return self.magrpo.replace(**own)

    def check(self) -> None:
        """Check what sections say together.

        Raises:
            FieldError: Names the section and what to write there.
        """
        if not self.agents:
            raise FieldError("agents", "none", "one [[agents]] per agent, each with a model")
        resolve_num_agents(
            {"agents": self.num_agents, "magrpo.num_agents": stated_num_agents(self.magrpo)}
        )
        _check_one_model(self)
        check_prompt_settings(self.magrpo, len(self.players))
        policies = self.magrpo.policies(len(self.players))
        for name in PER_AGENT:
            value = getattr(self.magrpo, name)
            check_per_agent(f"magrpo.{name}", value, len(self.players), policies)
        _check_who("reward", self.reward, needed=True)
        _check_who("transition", self.transition, needed=self.magrpo.num_turns > 1)
        _check_one_source("dataset", self.dataset)
        if self.eval_dataset is not None:
            _check_one_source("eval_dataset", self.eval_dataset)
        functions = self.formatters.functions
        if not isinstance(functions, str) and len(functions) not in (0, 1, self.num_agents):
            raise FieldError(
                "formatters.functions", f"{len(functions)} of them", f"1 or {self.num_agents}"
            )

    def resolved(self) -> dict[str, Any]:
        """Write the whole configuration as JSON values, defaults included."""
        magrpo = self.magrpo.replace(num_agents=self.num_agents)
        values: dict[str, Any] = self.model_dump(mode="json")
        values["magrpo"] = magrpo.model_dump(mode="json")
        return values


def load_run_config(
    file: Path | None,
    *,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> RunConfig:
    """Read a run from TOML, environment (``ANTIPHON_MAGRPO__SEED=3``) and ``--set magrpo.seed=3``.

    What comes later wins.

    Raises:
        FieldError: An unknown key (naming the nearest known one), a value that does not fit, or
            sections that contradict each other.
    """
    config = load_settings(RunConfig, file=file, overrides=overrides, environ=environ)
    config.check()
    return config


def _check_one_model(config: RunConfig) -> None:
    """Refuse several models where one is to play all agents."""
    if config.centralized is not None and (config.magrpo.shared_policy or len(config.agents) > 1):
        raise FieldError(
            "centralized",
            "shared_policy" if config.magrpo.shared_policy else f"{len(config.agents)} [[agents]]",
            "one [[agents]] entry, whose model answers for all, and magrpo.num_agents",
        )
    for number, agent in enumerate(config.agents if config.magrpo.shared_policy else ()):
        for name in ("model", "gguf_file", "tokenizer", "device"):
            own, first = getattr(agent, name), getattr(config.agents[0], name)
            if own != first:
                raise FieldError(
                    f"agents[{number}].{name}",
                    repr(own),
                    f"{first!r} as agents[0] has, since shared_policy trains one model",
                )


def _check_one_source(section: str, dataset: DatasetSettings) -> None:
    sources = {
        "path": dataset.path,
        "name": dataset.name,
        "prompts": dataset.prompts or None,
    }
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        raise FieldError(
            section, " and ".join(given) or "nothing", "exactly one of path, name, prompts"
        )


def _check_who(section: str, settings: FunctionSettings, *, needed: bool) -> None:
    if settings.function is not None and settings.address is not None:
        raise FieldError(section, "a function and an address", "one of them")
    if needed and settings.function is None and settings.address is None:
        more = ", or magrpo.num_turns = 1" if section == "transition" else ""
        raise FieldError(
            section,
            "neither function nor address",
            f'function = "module:function" or address = "host:port"{more}',
        )
    if settings.function is not None and settings.function.count(":") != 1:
        raise FieldError(f"{section}.function", repr(settings.function), '"module:function"')
