"""The settings of the optimisation, which `MAGRPOConfig` has beside CoMLRL's.

Names are those that people know from transformers and TRL where the meaning is theirs. What is
`PerAgent` is one value for all agents or a list with one per agent; `[[agents]]` may state an
agent's own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from antiphon.learner.config.lora import LoraSettings
from antiphon.learner.config.optimizer import OptimizerSettings
from antiphon.learner.config.per_agent import PerAgent, of_agent
from antiphon.learner.policy.schedules import Schedule, warmup_of
from antiphon.learner.run.early_stop import StopRule
from antiphon.services.common.settings import none_word

SchedulerType = Literal["constant", "linear", "cosine"]


OrNone = BeforeValidator(none_word)
OptionalCount = Annotated[Annotated[int, Field(ge=1)] | None, OrNone]
NotNegative = Annotated[float, Field(ge=0)]
Decay = Annotated[NotNegative | None, OrNone]
Norm = Annotated[Annotated[float, Field(gt=0)] | None, OrNone]
Steps = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Lora = Annotated[LoraSettings | None, OrNone]

PER_AGENT = (
    "agent_learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "warmup_ratio",
    "weight_decay",
    "max_grad_norm",
    "trainable",
    "lora",
)
"""Settings that may differ by agent."""


class OptimizationConfig(BaseModel):
    """How the optimiser of each agent steps, and when the run ends early."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    lr_scheduler_type: PerAgent[SchedulerType] = "constant"
    """What the learning rate does after the warm-up: ``"constant"``; ``"linear"`` or ``"cosine"``
    bring it down to `lr_min_ratio` over all of the agent's optimiser steps. One value, or a list
    with one per agent."""
    warmup_steps: PerAgent[Steps] = 0
    """Optimiser steps of an agent in which its learning rate comes up; step k of W has the share
    k / (W + 1) of it. One value or a list."""
    warmup_ratio: PerAgent[Share] = 0.0
    """Warm-up as a share of all steps instead, rounded up. One value or a list."""
    lr_min_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the learning rate that linear and cosine come down to."""
    lr_total_steps: OptionalCount = None
    """Optimiser steps over which linear and cosine come down, and that `warmup_ratio` is a share
    of. None: the most that the run can take, `max_steps` at most; early ends and dead groups make
    it fewer, so that the rate may not have come down all the way at the end. Needed where the
    dataset does not know its length."""
    weight_decay: PerAgent[Decay] = None
    """AdamW's weight decay; None is torch's default, 0.01. One value or a list."""
    decay_norms_and_biases: bool = True
    """Whether decay is of every parameter, as in torch; false leaves out those of fewer than two
    dimensions: norms and biases."""
    max_grad_norm: PerAgent[Norm] = None
    """The gradient is scaled down to this norm, over all of an agent's parameters, where it is
    longer; None is off. One value or a list."""
    adam_beta1: Share = 0.9
    """AdamW's decay of the first moment."""
    adam_beta2: Share = 0.999
    """AdamW's decay of the second moment."""
    adam_epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """AdamW's epsilon."""
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    """Minibatches per optimiser step: a drain's minibatches in order, so many at a time, the last
    ones of a drain being fewer. The gradient is the mean of theirs; minibatches of dead nodes alone
    count as places and are in no mean."""
    activation_checkpointing: bool = False
    """Layers keep their inputs only and are computed again going backward: less memory, more time,
    the same numbers."""
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What learner and local generation services compute in. ``"auto"`` is float32 on a CPU and
    `wire_dtype` on a GPU; ``"bfloat16"`` needs a bfloat16 wire. Master weights, and the sum of
    gradients over micro-batches, are float32 in any case. A service that is given by address is
    told with its own ``--dtype``."""
    trainable: PerAgent[bool] = True
    """False freezes an agent: it is sampled with the weights that it starts with, and takes no
    optimiser step. One value or a list."""
    lora: PerAgent[Lora] = None
    """A LoRA adapter to train instead of the whole model; None trains the model. Needs the extra
    `lora`. One table, or a list with one (or ``"none"``) per agent."""

    # When the run ends early.
    max_steps: OptionalCount = None
    """Optimiser steps after which the run ends: no agent takes more, and the run ends with the
    rollout batch in which the first one has taken them. None trains every epoch."""
    stop_metric: Annotated[str | None, OrNone] = None
    """A metric that may end the run early, by its name in `metrics.jsonl`, for example
    ``"turn_2/reward_mean"``. It is looked at where a row of the metrics has it."""
    stop_value: Annotated[float | None, OrNone] = None
    """The run ends once `stop_metric` is this good."""
    stop_patience: OptionalCount = None
    """The run ends after so many rows in a row without a better `stop_metric` than the best one."""
    stop_min_delta: NotNegative = 0.0
    """By how much a `stop_metric` must be better to count as better."""
    stop_mode: Literal["max", "min"] = "max"
    """Whether a larger or a smaller `stop_metric` is better."""
    dead_groups_limit: OptionalCount = 1000
    """The run ends after so many dead groups in a row, over all agents: all their returns were
    equal or missing, so that nothing trained. None never ends it."""

    @model_validator(mode="after")
    def _whole_stop_rule(self) -> Self:
        given = self.stop_value is not None or self.stop_patience is not None
        if self.stop_metric is None and given:
            raise ValueError("stop_metric: got none, wanted the metric that ends the run early")
        if self.stop_metric is not None and not given:
            raise ValueError(
                "stop_value and stop_patience: got neither, wanted one for stop_metric"
            )
        return self

    @property
    def stop_rule(self) -> StopRule | None:
        """When a metric ends the run; None where none does."""
        if self.stop_metric is None:
            return None
        return StopRule(
            self.stop_metric,
            value=self.stop_value,
            patience=self.stop_patience,
            min_delta=self.stop_min_delta,
            larger_is_better=self.stop_mode == "max",
        )

    def is_trainable(self, agent: int) -> bool:
        """Whether an agent's policy takes optimiser steps."""
        return of_agent(self.trainable, agent)

    def total_steps(self, most: int | None) -> int | None:
        """Optimiser steps over which learning rates come down; None where unknown.

        Args:
            most: The most that an agent can take in this run; None where unknown.
        """
        if self.lr_total_steps is not None:
            return self.lr_total_steps
        known = [steps for steps in (most, self.max_steps) if steps is not None]
        return min(known, default=None)

    def optimizer_settings(
        self, agent: int, learning_rate: float, most_steps: int | None
    ) -> OptimizerSettings:
        """How an agent's optimiser steps.

        Args:
            agent: Counted from 0.
            learning_rate: The agent's.
            most_steps: The most optimiser steps that it can take in this run; None where unknown.

        Raises:
            FieldError: The schedule needs a number of steps that is not known, or contradicts it.
        """
        total = self.total_steps(most_steps)
        decay = of_agent(self.weight_decay, agent)
        settings = OptimizerSettings(
            learning_rate=learning_rate,
            betas=(self.adam_beta1, self.adam_beta2),
            adam_epsilon=self.adam_epsilon,
            decay_norms_and_biases=self.decay_norms_and_biases,
            max_grad_norm=of_agent(self.max_grad_norm, agent),
            schedule=Schedule(
                of_agent(self.lr_scheduler_type, agent),
                warmup_of(
                    of_agent(self.warmup_steps, agent), of_agent(self.warmup_ratio, agent), total
                ),
                total,
                self.lr_min_ratio,
            ),
        )
        return settings if decay is None else replace(settings, weight_decay=decay)
