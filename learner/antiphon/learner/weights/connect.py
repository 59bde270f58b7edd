"""Before the first push: every generation service answers, and fits the agent that it serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon.clients.errors import CallError
from antiphon.clients.types import FieldError, ModelInfo, PushKind
from antiphon.learner.concurrency import task_group
from antiphon.learner.policy.adapters import is_adapted
from antiphon.learner.weights.replicas import Replica
from antiphon.services.common.models import context_length, tokenizer_fingerprint

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Needs:
    """What an agent needs of its services. `tokenizer_fingerprint` None is not compared.

    `appends` says that conversations go on token for token, `trained` that it learns,
    `return_kl_ahead` that its returns hold the reference KL of what is sampled ahead.
    """

    agent: int
    vocabulary_size: int
    tokenizer_fingerprint: bytes | None
    full_logprobs: bool
    adapter: bool = False
    appends: bool = False
    trained: bool = True
    return_kl_ahead: bool = False


def needs_of(
    agent: int,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    full_logprobs: bool,
    appends: bool = False,
    trained: bool = True,
    return_kl_ahead: bool = False,
) -> Needs:
    """What a model needs of its services; without a tokenizer theirs is not compared."""
    head = model.get_output_embeddings()
    size = model.config.get_text_config().vocab_size if head is None else head.weight.shape[0]
    fingerprint = None if tokenizer is None else tokenizer_fingerprint(tokenizer)
    return Needs(
        agent,
        int(size),
        fingerprint,
        full_logprobs,
        adapter=is_adapted(model),
        appends=appends,
        trained=trained,
        return_kl_ahead=return_kl_ahead,
    )


async def model_infos(
    replicas: Sequence[Replica],
    *,
    start_timeout: float,
    timeout: float,
) -> list[ModelInfo]:
    """Ask all replicas what they run, and note it; those that are still starting are waited for.

    Args:
        replicas: Whom to ask.
        start_timeout: Seconds that a service may take until it answers.
        timeout: Seconds per call.

    Raises:
        CallError: A service did not answer in time, or refused.
    """
    async with task_group() as group:
        asked = [group.create_task(_model_info(r, start_timeout, timeout)) for r in replicas]
    return [task.result() for task in asked]


async def _model_info(replica: Replica, start_timeout: float, timeout: float) -> ModelInfo:
    deadline = time.monotonic() + start_timeout
    while True:
        try:
            info = await replica.client.get_model_info(timeout)
        except CallError as error:
            if not error.transient or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.5)
        else:
            replica.acknowledged, replica.push_kinds = info.loaded, info.capabilities.push_kinds
            return info


def check_fit(info: ModelInfo, needs: Needs, address: str) -> None:
    """Refuse a service that cannot serve the agent.

    Raises:
        FieldError: Names the agent, the address and what does not fit.
    """
    where = f"agents[{needs.agent}] at {address}"
    can = info.capabilities
    # A frozen agent may be served by an engine whose weights are fixed, once it is as it should be.
    fixed = not needs.trained and not can.push_kinds
    offers = {
        "full pushes of weights": PushKind.FULL in can.push_kinds or fixed,
        "pushes of LoRA adapters": (
            PushKind.ADAPTER in can.push_kinds or fixed or not needs.adapter
        ),
        'prompts as token ids (conversation "append")': can.token_ids or not needs.appends,
        "log-probabilities of what it samples": can.logprobs or not needs.trained,
        'log-probabilities of the full softmax (logprob_support "full")': (
            can.full_logprobs or not needs.full_logprobs
        ),
    }
    if missing := [what for what, offered in offers.items() if not offered]:
        frozen = "" if can.push_kinds or not needs.trained else ", or a frozen agent (trainable)"
        raise FieldError(
            where,
            f"engine {info.engine!r} without {', '.join(missing)}",
            f"an engine with them{frozen}",
        )
    # A frozen agent's policy is at any time as it was at sampling.
    if needs.return_kl_ahead and needs.trained and not can.full_logprobs:
        raise FieldError(
            where,
            f"engine {info.engine!r} without log-probabilities of the full softmax, which the "
            "reference KL in the returns needs of tokens that are sampled ahead",
            'max_staleness 0, reference_kl_mode "loss", or the transformers engine',
        )
    if info.vocabulary_size != needs.vocabulary_size:
        raise FieldError(
            f"{where}: vocabulary",
            f"{info.vocabulary_size} tokens ({info.model})",
            f"{needs.vocabulary_size}, as the learner's model has",
        )
    wanted = needs.tokenizer_fingerprint
    if wanted is not None and info.tokenizer_fingerprint and info.tokenizer_fingerprint != wanted:
        raise FieldError(
            f"{where}: tokenizer",
            f"another one ({info.model}, fingerprint {info.tokenizer_fingerprint.hex()[:12]})",
            f"the learner's ({wanted.hex()[:12]}), in vocabulary, special tokens and template",
        )


def check_alike(infos: Sequence[ModelInfo], agent: int) -> None:
    """Refuse replicas of which some take no pushes, so that they cannot have one version.

    Raises:
        FieldError: Names the agent and the engines.
    """
    fixed = [not info.capabilities.push_kinds for info in infos]
    if any(fixed) != all(fixed):
        raise FieldError(
            f"agents[{agent}]",
            f"engines {sorted({info.engine for info in infos})}, of which some take no pushes",
            "replicas that all take pushes, or all keep their weights",
        )


def smallest_context(infos: Sequence[ModelInfo], model: PreTrainedModel) -> int:
    """Most tokens of prompt and completion that every replica and the learner's model take."""
    return min(context_length(model.config), *(info.context_length for info in infos))


def largest_incarnation(infos: Sequence[ModelInfo], run_id: str) -> int:
    """The largest incarnation of a run that any replica knows, 0 where none does."""
    known = [0]
    for info in infos:
        if info.bound_run_id == run_id:
            known.append(info.bound_incarnation)
        if info.loaded.run_id == run_id:
            known.append(info.loaded.incarnation)
    return max(known)
