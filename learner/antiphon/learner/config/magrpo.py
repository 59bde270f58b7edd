"""What a training run is told: CoMLRL's `MAGRPOConfig`, its names and defaults, and new fields.

A config is checked when it is made and cannot be changed afterwards; `replace` makes a changed
one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from antiphon.clients.retry import RetryPolicy
from antiphon.clients.types import FieldError, SamplingParameters, TensorDtype
from antiphon.learner.config.optimization import (
    NotNegative,
    OptimizationConfig,
    OptionalCount,
    OrNone,
)
from antiphon.learner.config.per_agent import PerAgent, of_agent
from antiphon.learner.config.prompts import PromptConfig
from antiphon.learner.data.row_order import RowOrder
from antiphon.services.common.settings import none_word

JointMode = Literal["aligned", "cross"]
AdvantageMode = Literal["mean", "rloo", "max", "raw"]
LossNormalization = Literal["sequence", "token", "constant"]
LogprobSupport = Literal["sampled", "full"]
ReferenceKlMode = Literal["return", "loss"]
ScoreFailure = Literal["stop", "missing"]
MissingScore = Literal["drop", "stop"]
EvalMode = Literal["path", "tree"]
BestMode = Literal["max", "min"]
ParallelTraining = Literal["none", "mp"]
TrackerName = Literal["wandb", "tensorboard", "trackio"]


def _list_as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


Devices = Annotated[str | tuple[str, ...] | None, OrNone, BeforeValidator(_list_as_tuple)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
_DEADLINES = (
    "score_timeout",
    "transition_timeout",
    "generate_timeout",
    "push_timeout",
    "control_timeout",
    "start_timeout",
    "replicas_timeout",
)


class MAGRPOConfig(OptimizationConfig, PromptConfig):
    """Settings of a multi-turn MAGRPO run, given by keyword.

    Agents count from 0, turns from 1. ``None`` (in TOML the word ``"none"``) turns a filter, a
    threshold or a limit off.

    Example:
        ``MAGRPOConfig(num_turns=2, num_train_epochs=2, num_generations=4, max_new_tokens=64)``

    Raises:
        pydantic.ValidationError: A `ValueError` that names the field, what came and what is wanted.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    # The loop.
    num_train_epochs: int = Field(default=20, ge=1)
    """Passes over the training dataset."""
    agent_learning_rate: PerAgent[NotNegative] = 5e-6
    """Learning rate of every agent's AdamW, or a list with one per agent; 0 samples and scores but
    leaves the weights as they are."""
    logging_steps: int = Field(default=50, ge=1)
    """Joint actions between two rows of the metrics."""
    num_agents: int = Field(default=2, ge=1)
    """Number of agents, N. Where agents are listed, their number counts; a contradiction is an
    error."""
    parallel_training: ParallelTraining = "none"
    """CoMLRL's switch for agents on several devices, ``"none"`` or ``"mp"``, which do the same:
    agents always generate and train side by side, each on its device of `agent_devices`."""
    agent_devices: Devices = None
    """Where the learner holds its policies: ``"cpu"``, ``"cuda:0"``, one for all or a list with
    one per agent; ``"auto"`` or None takes what there is."""

    # Sampling.
    num_generations: int = Field(default=4, ge=2)
    """Completions per prompt, G; the baseline of a group needs two at least."""
    max_new_tokens: int = Field(default=256, ge=1, le=2**32 - 1)
    """Most tokens of a completion, its end token included."""
    temperature: float = Field(default=0.6, ge=1e-6)
    """Divides the logits; greedy decoding (0) is refused, equal completions teach nothing."""
    top_p: Annotated[Annotated[float, Field(gt=0, le=1)] | None, OrNone] = 0.6
    """Smallest set of tokens with at least this probability; None is off."""
    top_k: Annotated[Annotated[int, Field(ge=1, le=2**32 - 1)] | None, OrNone] = 50
    """The k likeliest tokens, before top_p; None is off."""

    # The tree of turns.
    num_turns: int = Field(default=2, ge=1)
    """Turns per task, T."""
    discount: float = Field(default=1.0, ge=0, le=1000)
    """Weight of a later turn's return in the earlier turn's return."""
    joint_mode: JointMode = "aligned"
    """Which completions form joint actions: ``"aligned"`` pairs the g-th ones (G per node),
    ``"cross"`` takes the product (G^N per node)."""
    early_termination_threshold: Annotated[float | None, OrNone] = -0.2
    """A node whose mean reward is strictly above it is not continued; None is off."""
    external_prompt_passthrough: bool = False
    """Later turns use the transition's prompts verbatim; the formatters see the first turn only."""

    # Evaluation.
    eval_interval: int = Field(default=16, ge=0)
    """Prompts between two evaluations, counted over the run; there is one before the first prompt
    and one after the last, too. 0 evaluates only where it is asked for, and without an evaluation
    dataset there is none."""
    eval_num_samples: int = Field(default=4, ge=0)
    """Tasks per evaluation, the first ones of the evaluation dataset."""
    eval_batch_size: int = Field(default=1, ge=1)
    """Tasks evaluated at once."""
    eval_mode: EvalMode = "path"
    """``"path"``: one sample per agent and turn; ``"tree"``: as many as in training. All turns are
    followed, whatever `early_termination_threshold` says."""
    eval_temperature: Annotated[Annotated[float, Field(ge=0)] | None, OrNone] = None
    """Temperature of evaluations, 0 for greedy decoding; None samples as in training."""
    best_metric: Annotated[str | None, OrNone] = None
    """A figure of the evaluations, such as ``"eval/turn_2/reward_mean"``: the models of the best
    evaluation are kept in `best` in the run folder."""
    best_mode: BestMode = "max"
    """Whether the largest or the smallest value of `best_metric` is the best."""

    # The update.
    rollout_buffer_size: int = Field(default=2, ge=1)
    """Nodes that an agent's buffer gathers before it drains into optimiser steps."""
    train_batch_size: OptionalCount = None
    """Nodes per optimiser step; None means `rollout_buffer_size`, and reads as it."""
    advantage_normalization: bool = True
    """Divide advantages by the spread of the group's returns."""
    advantage_mode: AdvantageMode = "mean"
    """The baseline: the group's mean, the mean of the others (``"rloo"``), its maximum, or none
    (``"raw"``)."""
    reference_kl_enabled: bool = False
    """A penalty for leaving the policy that training started from: k3 of the full softmax at
    temperature 1, summed over a completion's tokens."""
    reference_kl_coef: float = Field(default=0.1, ge=0)
    """Weight of that penalty, beta."""
    reference_devices: Devices = None
    """Where the frozen references are held: None is each policy's own device; ``"auto"``, a device
    or a list with one per agent as in `agent_devices`; ``"offload"`` holds them in main memory and
    computes on the policy's device."""

    # Beside CoMLRL's: the update.
    trackers: tuple[TrackerName, ...] = ()
    """Where the metrics are told besides `metrics.jsonl`: ``"wandb"``, ``"tensorboard"``,
    ``"trackio"``; each needs the extra of its name."""
    keep_rollouts_every: int = Field(default=1, ge=0)
    """The tree of every so-many-th prompt is kept in the run folder; 0 keeps none."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Fixes every completion and the order of the nodes."""
    shared_policy: bool = False
    """All agents are played by one set of weights: one model, one optimiser, one buffer, one
    publish. Formatters give the agents their roles."""
    reference_kl_mode: ReferenceKlMode = "return"
    """``"return"`` takes the reference KL off the agent's returns (the policy as it was at
    sampling); ``"loss"`` adds it to the loss (the policy as it is now, with gradient)."""
    loss_normalization: LossNormalization = "sequence"
    """``"sequence"``: sum over tokens, mean over completions, mean over nodes; ``"token"``: mean
    over all tokens; ``"constant"``: sum over all tokens / (completions x max_new_tokens)."""
    importance_ratio: bool = True
    """Weigh a token by its probability now over that at sampling, clipped; false leaves it out."""
    clip_ratio_low: float = Field(default=0.2, ge=0, lt=1)
    """The ratio is clipped at 1 minus this."""
    clip_ratio_high: float = Field(default=0.2, ge=0, le=1e6)
    """The ratio is clipped at 1 plus this."""
    engine_gap_bound: Annotated[NotNegative | None, OrNone] = 0.05
    """Warn once of an agent whose engine gives tokens log-probabilities that differ from the
    learner's at the same weights by more than this on average; None never warns."""
    logprob_support: LogprobSupport = "sampled"
    """Log-probabilities under the distribution sampled from (after top_k and top_p), or under the
    full softmax at the same temperature."""
    micro_batch_size: OptionalCount = None
    """Most completions in one forward and backward pass. A pass of several never has more than
    1,024 tokens (padding included), or twice those of the prompt that they share; None sets no
    other limit. Saves memory, changes results by rounding."""
    max_staleness: int = Field(default=0, ge=0)
    """Most publishes between the weights that a node is sampled from and its entering the buffer.
    0 samples, updates and publishes in turn; S above 0 samples up to S rollout batches ahead,
    beside the update, and truncates importance ratios."""

    # Beside CoMLRL's: checkpoints.
    checkpoint_interval: int = Field(default=1, ge=0)
    """Epochs between two checkpoints; 0 writes none at the end of epochs. A run that is stopped or
    fails is saved in any case."""
    checkpoint_every_prompts: OptionalCount = None
    """Prompts between two checkpoints, beside those at the end of epochs; None writes none."""
    checkpoint_total_limit: OptionalCount = 2
    """Checkpoints that are kept, the newest ones; None keeps all."""

    # Beside CoMLRL's: the services.
    rollout_batch_size: int = Field(default=1, ge=1)
    """Tasks rolled out together."""
    wire_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Number format of the weights that are sampled from and trained; the master copy is
    float32."""
    delta_pushes: bool = True
    """Push what changed instead of all weights, where that is less and the service takes it. Keeps
    a copy of each policy's published weights, in `wire_dtype`, in the learner's memory."""
    on_score_failure: ScoreFailure = "stop"
    """A reward that fails stops the run, or counts as missing."""
    on_missing_score: MissingScore = "drop"
    """A joint action whose reward is missing, or no finite number, is dropped while the others of
    its group train, or stops the run. ``"stop"`` wants `on_score_failure` to be so too."""
    reward_batch_size: int = Field(default=1, ge=1)
    """Joint actions of a node per call of a reward function given in a script or in `[reward]`."""
    score_timeout: Seconds = 300.0
    """Seconds that one Score call may take."""
    transition_timeout: Seconds = 300.0
    """Seconds that one Transition call may take."""
    generate_timeout: Seconds = 900.0
    """Seconds that the completions of one batch may take."""
    push_timeout: Seconds = 900.0
    """Seconds that one push of weights to one replica may take."""
    control_timeout: Seconds = 10.0
    """Seconds that small calls (health, information, push status) may take."""
    run_lease: Seconds = 60.0
    """Seconds without a call after which a local generation service lets another run take it."""
    start_timeout: Seconds = 300.0
    """Seconds that services may take until they are ready, and that one which belongs to another
    run is waited for until that run's lease ends."""
    weights_store: Annotated[str | None, OrNone] = None
    """URL of a store that generation services read pushes from (``--weights-store``), such as
    ``file:///mnt/weights`` or ``s3://bucket/weights``: each push is written there once, however
    many replicas there are. None sends it to every replica."""
    resolve_interval: Seconds = 5.0
    """Seconds between two looks at the addresses behind an agent's name (``dns:///name:port``,
    ``file:///list``); a lost replica is looked for at once."""
    replicas_timeout: Seconds = 600.0
    """Seconds that an agent whose services are given by address may be without any that can be
    asked, before the run ends: as long as a new one needs to load its model, and more."""
    retry: RetryPolicy = RetryPolicy()
    """How often, and after which pauses, a call that fails for a passing reason is made again."""
    progress_timeout: Annotated[Annotated[float, Field(gt=0)] | None, OrNone] = 3600.0
    """The run ends with an error that says what it was waiting for once nothing has got on for so
    many seconds: no completion, score, transition, push or optimiser step. It must be longer than
    every other time limit above; where it is not given, it is twice the longest one if that is
    more. A pause does not count, an evaluation that is asked for meanwhile does. None waits for
    ever."""

    @model_validator(mode="before")
    @classmethod
    def _known_names(cls, data: object) -> object:
        if isinstance(data, Mapping):
            for name in data:
                if name not in cls.model_fields:
                    raise ValueError(_unknown(cls.__name__, str(name), cls.model_fields))
        return data

    @field_validator("parallel_training", mode="before")
    @classmethod
    def _comlrls_spelling(cls, value: object) -> object:
        if value is None or none_word(value) is None:
            return "none"
        return value.strip().lower() if isinstance(value, str) else value

    @field_validator("agent_devices", "reference_devices")
    @classmethod
    def _some_device(cls, value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        if value is not None and (not value or not all(value)):
            raise PydanticCustomError("devices", "'auto', a device, or a list of devices")
        return value

    @model_validator(mode="after")
    def _fill_train_batch_size(self) -> Self:
        if self.train_batch_size is None:
            self.__dict__["train_batch_size"] = self.rollout_buffer_size
        return self

    @model_validator(mode="after")
    def _outlast_every_deadline(self) -> Self:
        if self.progress_timeout is None:
            return self
        limits = {name: float(getattr(self, name)) for name in _DEADLINES}
        name = max(limits, key=lambda name: limits[name])
        if "progress_timeout" not in self.model_fields_set:
            self.__dict__["progress_timeout"] = max(self.progress_timeout, 2 * limits[name])
        elif self.progress_timeout <= limits[name]:
            raise ValueError(
                f"progress_timeout: got {self.progress_timeout:g}, wanted more than {name}, which "
                f"is {limits[name]:g}: one call that is allowed to take as long is no standstill"
            )
        return self

    @model_validator(mode="after")
    def _compute_what_is_on_the_wire(self) -> Self:
        if self.compute_dtype == "bfloat16" and self.wire_dtype != "bfloat16":
            raise ValueError(
                f"compute_dtype: got 'bfloat16' with wire_dtype {self.wire_dtype!r}, wanted "
                "wire_dtype 'bfloat16': weights are computed with exactly as they are on the wire"
            )
        return self

    @model_validator(mode="after")
    def _stop_at_failures_too(self) -> Self:
        if self.on_missing_score == "stop" and self.on_score_failure != "stop":
            raise ValueError(
                f"on_missing_score: got 'stop' with on_score_failure {self.on_score_failure!r}, "
                "wanted on_score_failure 'stop', or 'drop': a reward that fails would count as "
                "missing, and stop the run all the same"
            )
        return self

    def replace(self, **changes: Any) -> MAGRPOConfig:
        """Make a checked copy with some fields changed; fields never set keep their defaults.

        Raises:
            pydantic.ValidationError: As when a config is made.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**given, **changes})

    @property
    def minibatch_size(self) -> int:
        """Nodes per optimiser step."""
        return self.train_batch_size or self.rollout_buffer_size

    def policies(self, num_agents: int) -> tuple[tuple[int, ...], ...]:
        """The agents that each policy plays: one each, or all of them (`shared_policy`)."""
        agents = range(num_agents)
        return (tuple(agents),) if self.shared_policy else tuple((agent,) for agent in agents)

    def learning_rate(self, agent: int) -> float:
        """Learning rate of an agent."""
        return of_agent(self.agent_learning_rate, agent)

    @property
    def row_order(self) -> RowOrder | None:
        """The order of the training dataset's rows; None where it is the dataset's own."""
        return RowOrder(self.seed, self.shuffle_buffer_size) if self.shuffle else None

    @property
    def return_kl_coef(self) -> float:
        """Weight of the reference KL in the returns; 0 where it is not there."""
        return self._kl_coef("return")

    @property
    def return_kl_ahead(self) -> bool:
        """Whether the returns hold the reference KL of tokens that are sampled ahead.

        It is the policy's as it was at sampling, which then only the engine can tell.
        """
        return self.return_kl_coef > 0 and self.max_staleness > 0

    @property
    def loss_kl_coef(self) -> float:
        """Weight of the reference KL in the loss; 0 where it is not there."""
        return self._kl_coef("loss")

    def _kl_coef(self, mode: ReferenceKlMode) -> float:
        there = self.reference_kl_enabled and self.reference_kl_mode == mode
        return self.reference_kl_coef if there else 0.0

    @property
    def sampling(self) -> SamplingParameters:
        """The sampling parameters of every Generate call."""
        return SamplingParameters(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            max_new_tokens=self.max_new_tokens,
        )

    @property
    def tensor_dtype(self) -> TensorDtype:
        """`wire_dtype` as the contract's type."""
        return TensorDtype(self.wire_dtype)


def _unknown(model: str, name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; fields are {', '.join(known)}"
    return f"{model} has no field {name!r}{hint}"


def resolve_num_agents(counts: Mapping[str, int | None]) -> int:
    """Find the number of agents in everything that states one; None states nothing.

    Args:
        counts: Number of agents by where it was stated, for example
            ``{"agents": 3, "args.num_agents": None, "formatters": 3}``.

    Raises:
        FieldError: Two places contradict each other, or none states a number.
    """
    given = {source: count for source, count in counts.items() if count is not None}
    if not given:
        raise FieldError(" or ".join(counts), "nothing", "the number of agents")
    first, number = next(iter(given.items()))
    for source, count in given.items():
        if count != number:
            raise FieldError(source, count, f"{number}, the number of agents that {first} gives")
    if number < 1:
        raise FieldError(first, number, "one agent at least")
    return number


def stated_num_agents(config: MAGRPOConfig) -> int | None:
    """`num_agents` where the user set it, None where it is only the default."""
    return config.num_agents if "num_agents" in config.model_fields_set else None


def resolve_devices(
    devices: str | Sequence[str] | None,
    num_agents: int,
    *,
    cuda_devices: int = 0,
    field: str = "agent_devices",
) -> tuple[str, ...]:
    """Name one device per agent.

    Args:
        devices: None or ``"auto"``, one name, or a list of one or `num_agents` names.
        num_agents: Number of agents, N.
        cuda_devices: Number of CUDA devices that ``"auto"`` spreads the agents over, in turn.
        field: The setting's name, for the message.

    Raises:
        FieldError: A list of another length.
    """
    if devices is None or devices == "auto":
        if cuda_devices < 1:
            return ("cpu",) * num_agents
        return tuple(f"cuda:{agent % cuda_devices}" for agent in range(num_agents))
    if isinstance(devices, str):
        return (devices,) * num_agents
    if len(devices) == 1:
        return (devices[0],) * num_agents
    if len(devices) != num_agents:
        raise FieldError(field, f"{len(devices)} devices", f"1 or {num_agents}")
    return tuple(devices)
