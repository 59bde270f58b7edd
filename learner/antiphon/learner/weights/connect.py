"""Before the first push: every generation service answers, and fits the agent that it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon.clients.types import FieldError, ModelInfo, PushKind
from antiphon.learner.concurrency import task_group
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.policy.adapters import is_adapted
from antiphon.learner.rollout.fit import misfit
from antiphon.learner.start_wait import ONCE, started
from antiphon.learner.weights.replicas import Replica, Replicas
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


def needs_in_run(
    config: MAGRPOConfig,
    agent: int,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
) -> Needs:
    """What an agent needs of its services in a run with these settings; as `needs_of`."""
    return needs_of(
        agent,
        model,
        tokenizer,
        full_logprobs=config.logprob_support == "full",
        appends=config.conversation == "append",
        trained=config.is_trainable(agent),
        return_kl_ahead=config.return_kl_ahead,
    )


async def model_infos(
    replicas: Iterable[Replica],
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


async def answering(
    replicas: Replicas, *, all_of_them: bool, start_timeout: float, timeout: float
) -> dict[str, ModelInfo]:
    """What an agent's first replicas run, by address, as `model_infos` says.

    Behind a name one that answers is enough: who has not answered `timeout` seconds after the first
    is left out until it does.

    Raises:
        CallError: As `model_infos`; behind a name where no replica answered.
    """
    if all_of_them:
        infos = await model_infos(replicas, start_timeout=start_timeout, timeout=timeout)
        return {replica.address: info for replica, info in zip(replicas, infos, strict=True)}
    asked = {asyncio.create_task(_model_info(r, start_timeout, timeout)): r for r in replicas}
    try:
        waiting, answered = set(asked), set[asyncio.Task[ModelInfo]]()
        while waiting and not answered:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            answered = {task for task in done if task.exception() is None}
        if waiting:
            await asyncio.wait(waiting, timeout=timeout)
    finally:
        for task in asked:
            task.cancel()
    infos_of: dict[str, ModelInfo] = {}
    for task, replica in asked.items():
        if task.done() and not task.cancelled() and task.exception() is None:
            infos_of[replica.address] = task.result()
        else:
            replica.reachable = replica.serving = False
    if not infos_of:
        next(iter(asked)).result()  # raises why
    return infos_of


async def _model_info(replica: Replica, start_timeout: float, timeout: float) -> ModelInfo:
    info = await started(
        replica.client,
        lambda: replica.client.get_model_info(timeout, retry=ONCE),
        start_timeout=start_timeout,
        timeout=timeout,
    )
    _note(replica, info)
    return info


def _note(replica: Replica, info: ModelInfo) -> None:
    can = info.capabilities
    replica.acknowledged, replica.push_kinds = info.loaded, can.push_kinds
    replica.reads_store = info.reads_store
    replica.batch_rows, replica.delta_dtypes = can.batch_rows, can.delta_dtypes


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


@dataclass(frozen=True)
class Terms:
    """What a run has agreed on with an agent's first replicas, and what later ones must offer.

    Attributes:
        needs: Of the agent.
        context_length: Most tokens of prompt and completion together, of the smallest.
        max_prompt_tokens: Most tokens of a prompt alone, of the smallest.
        full_logprobs: They are asked for log-probabilities under the full softmax too.
        token_ids: Prompts are sent as token ids.
        fixed: They keep the weights that they started with.
    """

    needs: Needs
    context_length: int
    max_prompt_tokens: int
    full_logprobs: bool
    token_ids: bool
    fixed: bool

    def room(self, max_new_tokens: int) -> int:
        """Most tokens of a prompt and that many new ones together."""
        return min(self.context_length, self.max_prompt_tokens + max_new_tokens)

    def misfit(self, agent: int, prompt_tokens: int, max_new_tokens: int) -> str:
        """Why a prompt and a whole completion do not fit; empty where they do."""
        if detail := misfit(agent, prompt_tokens, max_new_tokens, self.context_length):
            return detail
        if prompt_tokens <= self.max_prompt_tokens:
            return ""
        return (
            f"agent {agent}: a prompt of {prompt_tokens} tokens, where its services take prompts "
            f"of at most {self.max_prompt_tokens}"
        )


def agreed(
    infos: Mapping[str, ModelInfo], needs: Needs, model: PreTrainedModel, *, full_logprobs: bool
) -> Terms:
    """What an agent's first replicas have in common, by address.

    Args:
        infos: What each of them runs.
        needs: Of the agent.
        model: The learner's.
        full_logprobs: To be asked for, where all offer them.

    Raises:
        FieldError: One of them does not fit, or they cannot have one version.
    """
    check_alike(list(infos.values()), needs.agent)
    for address, info in infos.items():
        check_fit(info, needs, address)
    can = [info.capabilities for info in infos.values()]
    contexts = [context_length(model.config), *(info.context_length for info in infos.values())]
    return Terms(
        needs,
        min(contexts),
        min(info.longest_prompt for info in infos.values()),
        full_logprobs and all(one.full_logprobs for one in can),
        all(one.token_ids for one in can),
        not any(one.push_kinds for one in can),
    )


async def admit(replica: Replica, terms: Terms, timeout: float) -> None:
    """Let a replica join a run: ask what it runs and has loaded, and note it.

    Raises:
        CallError: It did not answer, or refused.
        FieldError: It does not fit the agent, or offers less than the first replicas did.
    """
    info = await replica.client.get_model_info(timeout)
    check_fit(info, terms.needs, replica.address)
    where, can = f"agents[{terms.needs.agent}] at {replica.address}", info.capabilities
    offers = {
        f"a context of {terms.context_length} tokens": info.context_length >= terms.context_length,
        f"prompts of {terms.max_prompt_tokens} tokens": (
            info.longest_prompt >= min(terms.max_prompt_tokens, terms.context_length)
        ),
        "log-probabilities of the full softmax": can.full_logprobs or not terms.full_logprobs,
        "prompts as token ids": can.token_ids or not terms.token_ids,
        "pushes of weights": bool(can.push_kinds) or terms.fixed,
        "weights that stay": not can.push_kinds or not terms.fixed,
    }
    if missing := [what for what, offered in offers.items() if not offered]:
        raise FieldError(
            where,
            f"engine {info.engine!r} without {', '.join(missing)}",
            "what the agent's first replicas offered",
        )
    _note(replica, info)


def largest_incarnation(infos: Iterable[ModelInfo], run_id: str) -> int:
    """The largest incarnation of a run that any replica knows, 0 where none does."""
    known = [0]
    for info in infos:
        if info.bound_run_id == run_id:
            known.append(info.bound_incarnation)
        if info.loaded.run_id == run_id:
            known.append(info.loaded.incarnation)
    return max(known)
