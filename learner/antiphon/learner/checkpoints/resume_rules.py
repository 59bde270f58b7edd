"""What may change when a run is resumed, field by field, and why the rest may not.

A run that is resumed under the same settings ends with the same weights as one that was not
stopped. Settings that do not touch the weights may change freely; some that do are taken as the
user's wish from there on, and noted; the others would make what is in the checkpoint (buffers,
cursor, moments) something that no run ever was, and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from antiphon.clients.types import FieldError
from antiphon.learner.config.magrpo import MAGRPOConfig

_SERVICES = "how services are reached does not touch the weights"
_TELLS = "what is told of a run does not touch the weights"
_EVALUATION = "evaluation leaves training as it is"
_MEMORY = "how work is cut up changes results by rounding only"
_ONE_RUN = "the optimiser steps before and after would follow different rules"
_TREES = "trees, and the nodes that wait in the buffers, would have another shape"
_SAMPLING = "completions before and after would be drawn from different distributions"
_ENDS = "when a run ends does not touch the weights until then"
_FROM_HERE = "it holds from the next optimiser step on"
_SCHEDULE = (
    "without lr_total_steps, linear, cosine and warmup_ratio follow the new number of optimiser "
    "steps from there on, so the learning rate may jump"
)
_MOMENTS = "the moments in the checkpoint were made with the other value"
_PROMPTS = "agents would be asked other prompts than so far"
_ORDER = "the checkpoint says how many rows were trained, in the other order"
_STEPS = "which nodes make an optimiser step, and when, would differ from a run of either value"

FREE: Mapping[str, str] = {
    "logging_steps": _TELLS,
    "engine_gap_bound": _TELLS,
    "keep_rollouts_every": _TELLS,
    "trackers": _TELLS,
    "agent_devices": _MEMORY,
    "parallel_training": "agents are updated side by side in any case",
    "reference_devices": _MEMORY,
    "micro_batch_size": _MEMORY,
    "activation_checkpointing": "layers that are computed again give the same numbers",
    "stop_metric": _ENDS,
    "stop_value": _ENDS,
    "stop_patience": _ENDS,
    "stop_min_delta": _ENDS,
    "stop_mode": _ENDS,
    "dead_groups_limit": _ENDS,
    "progress_timeout": _ENDS,
    "eval_interval": _EVALUATION,
    "eval_num_samples": _EVALUATION,
    "eval_batch_size": _EVALUATION,
    "eval_mode": _EVALUATION,
    "eval_temperature": _EVALUATION,
    "best_metric": _EVALUATION,
    "best_mode": _EVALUATION,
    "on_score_failure": "it says what a failure does, not how a reward is used",
    "on_missing_score": "it says what a missing reward does, not how a reward is used",
    "reward_batch_size": "a reward depends on its joint action alone",
    "score_timeout": _SERVICES,
    "transition_timeout": _SERVICES,
    "generate_timeout": _SERVICES,
    "push_timeout": _SERVICES,
    "delta_pushes": _SERVICES,
    "control_timeout": _SERVICES,
    "start_timeout": _SERVICES,
    "replicas_timeout": _SERVICES,
    "resolve_interval": _SERVICES,
    "weights_store": _SERVICES,
    "run_lease": _SERVICES,
    "retry": _SERVICES,
    "checkpoint_interval": "when checkpoints are written does not touch the weights",
    "checkpoint_every_prompts": "when checkpoints are written does not touch the weights",
    "checkpoint_total_limit": "how many are kept does not touch the weights",
}
"""Fields of `[magrpo]` that may change without a word, and why."""

NOTED: Mapping[str, str] = {
    "num_train_epochs": f"the run goes on to the new number of epochs; {_SCHEDULE}",
    "max_steps": f"the run goes on to the new number of optimiser steps; {_SCHEDULE}",
    "agent_learning_rate": _FROM_HERE,
    "lr_scheduler_type": _FROM_HERE,
    "lr_min_ratio": _FROM_HERE,
    "lr_total_steps": _FROM_HERE,
    "warmup_steps": _FROM_HERE,
    "warmup_ratio": _FROM_HERE,
    "weight_decay": _FROM_HERE,
    "decay_norms_and_biases": _FROM_HERE,
    "max_grad_norm": _FROM_HERE,
}
"""Fields of `[magrpo]` that may change and touch the weights from there on; each is noted."""

REFUSED: Mapping[str, str] = {
    "num_agents": "every agent has its own weights, moments and buffer in the checkpoint",
    "shared_policy": "the checkpoint holds weights, moments and a buffer for every policy",
    "num_generations": _TREES,
    "num_turns": _TREES,
    "joint_mode": _TREES,
    "early_termination_threshold": _TREES,
    "max_new_tokens": _SAMPLING,
    "temperature": _SAMPLING,
    "top_p": _SAMPLING,
    "top_k": _SAMPLING,
    "external_prompt_passthrough": _PROMPTS,
    "apply_chat_template": _PROMPTS,
    "system_prompt": _PROMPTS,
    "conversation": _PROMPTS,
    "shuffle": _ORDER,
    "shuffle_buffer_size": _ORDER,
    "discount": "returns in the buffers were made with the other value",
    "advantage_mode": "advantages in the buffers were made with the other value",
    "advantage_normalization": "advantages in the buffers were made with the other value",
    "reference_kl_enabled": "returns in the buffers were made with the other value",
    "reference_kl_mode": "returns in the buffers were made with the other value",
    "reference_kl_coef": "returns in the buffers were made with the other value",
    "seed": "completions and the order of nodes would be those of two runs",
    "rollout_buffer_size": _STEPS,
    "train_batch_size": _STEPS,
    "rollout_batch_size": _STEPS,
    "gradient_accumulation_steps": _STEPS,
    "adam_beta1": _MOMENTS,
    "adam_beta2": _MOMENTS,
    "adam_epsilon": _MOMENTS,
    "compute_dtype": "completions and steps before and after would be rounded differently",
    "lora": "the checkpoint holds the other adapter, or the whole model",
    "trainable": "a frozen agent has no moments in the checkpoint",
    "max_staleness": _STEPS,
    "loss_normalization": _ONE_RUN,
    "importance_ratio": _ONE_RUN,
    "clip_ratio_low": _ONE_RUN,
    "clip_ratio_high": _ONE_RUN,
    "logprob_support": "log-probabilities in the buffers are under the other support",
    "wire_dtype": "the weights that were sampled from and trained had the other number format",
}
"""Fields of `[magrpo]` that may not change, and why."""

_UNLISTED = "it has a part in what is trained"
_MODEL = "the checkpoint holds the weights and moments of the other model"
_TOKENIZER = "the token ids in the checkpoint are the other tokenizer's"
_DATASET = "the checkpoint says how many rows of that dataset were trained"


def check_resume(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Compare what a run was told before with what it is told now (`description.described`).

    Returns:
        A note for each change that touches the weights from here on.

    Raises:
        FieldError: Names every change that is refused, with its reason.
    """
    refused: list[str] = []
    notes: list[str] = []
    # A field that the checkpoint does not know had what is now its default.
    old = {**MAGRPOConfig().model_dump(mode="json"), **before["magrpo"]}
    for field, value in now["magrpo"].items():
        if old.get(field) == value or field in FREE:
            continue
        change = f"{field} was {old.get(field)!r} and is {value!r}"
        if field in NOTED:
            notes.append(f"{change}: {NOTED[field]}")
        else:
            refused.append(f"{change}: {REFUSED.get(field, _UNLISTED)}")
    refused += _agents(before["agents"], now["agents"], notes)
    refused += _dataset(before["dataset"], now["dataset"])
    for who in ("reward", "transition"):
        if before[who] != now[who]:
            notes.append(
                f"{who} was {_named(before[who])} and is {_named(now[who])}: that both answer "
                "alike is taken for granted"
            )
    for what, name in now["user_code"].items():
        # An older checkpoint does not say.
        if name != (was := before.get("user_code", {}).get(what, name)):
            notes.append(
                f"{what} was {was} and is {name}: that both answer alike is taken for granted"
            )
    if refused:
        raise FieldError(
            "resume",
            "other settings than the checkpoint was made under: " + "; ".join(refused),
            "those of the run that is resumed, or a new run",
        )
    return notes


def _agents(
    before: list[Mapping[str, Any]], now: list[Mapping[str, Any]], notes: list[str]
) -> list[str]:
    refused = []
    for number, (old, new) in enumerate(zip(before, now, strict=False)):
        where = f"agents[{number}]"
        if PurePath(old["model"]).name != PurePath(new["model"]).name:
            refused.append(f"{where} was {old['model']!r} and is {new['model']!r}: {_MODEL}")
        if old["tokenizer"] != new["tokenizer"]:
            refused.append(f"{where} has another tokenizer: {_TOKENIZER}")
        if old["learning_rate"] != new["learning_rate"]:
            notes.append(
                f"{where}.learning_rate was {old['learning_rate']} and is {new['learning_rate']}: "
                f"{NOTED['agent_learning_rate']}"
            )
    return refused


def _dataset(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    if before["rows"] != now["rows"]:
        return [f"the dataset had {_rows(before)} and has {_rows(now)}: {_DATASET}"]
    if before["fingerprint"] != now["fingerprint"]:
        return [f"the dataset's rows have changed: {_DATASET}"]
    return []


def _rows(dataset: Mapping[str, Any]) -> str:
    return "no known length" if dataset["rows"] is None else f"{dataset['rows']} rows"


def _named(who: Mapping[str, str]) -> str:
    return next(iter(who.values()), "nothing")
