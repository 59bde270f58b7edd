"""What is scripted on our side: what samples, scores and writes the next prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from benchmarks.parity_parts import models
from benchmarks.parity_parts.script import WORD_IDS

from antiphon.clients.types import (
    Completion,
    FinishReason,
    JointAction,
    PromptSamples,
    Score,
    ScoredJointAction,
    Task,
    TokenIds,
    TransitionResult,
    WeightsSpan,
)
from antiphon.learner.arithmetic.samples import TrainedCompletion
from antiphon.learner.policy.forward import Forward
from antiphon.learner.policy.logprobs import plain_logprobs
from antiphon.learner.policy.micro_batches import Row as TokenRow
from antiphon.services.common.user_functions import RewardFunction, TransitionFunction

Answers = Callable[[str, int], Sequence[str]]
VOCABULARY = len(WORD_IDS)
TOKENS = 4096


async def on_main_thread(function: Callable[[], Any], what: str) -> Any:  # noqa: ARG001
    return function()


def completion(
    prompt_ids: Sequence[int], token_ids: Sequence[int], text: str, *, index: int, sample: int
) -> Completion:
    """A completion sampled from the whole softmax; its log-probabilities are given later."""
    return Completion(
        prompt_index=index,
        sample_index=sample,
        text=text,
        token_ids=tuple(token_ids),
        logprobs=(0.0,) * len(token_ids),
        kept_sizes=(VOCABULARY,) * len(token_ids),
        finish_reason=FinishReason.END_TOKEN,
        prompt_token_ids=tuple(prompt_ids),
        weights_spans=(WeightsSpan(0, 1),),
        instance_id="script",
        boot_id="script",
    )


@dataclass
class ScriptedEngine:
    """Answers as the script says; with a model, its log-probabilities come along."""

    tokenizer: Any
    answers: Answers
    model: Any = None
    context_length: int = models.CONTEXT

    async def generate(
        self, prompts: Sequence[PromptSamples], deliver: Callable[[Completion], None]
    ) -> None:
        for index, asked in enumerate(prompts):
            assert isinstance(asked.prompt, TokenIds)
            text = self.tokenizer.decode(asked.prompt.ids)
            for sample in range(len(asked.seeds)):
                ids = [WORD_IDS[word] for word in self.answers(text, sample)]
                said = self.tokenizer.decode(ids, skip_special_tokens=True)
                made = completion(asked.prompt.ids, ids, said, index=index, sample=sample)
                deliver(made if self.model is None else self._measured(made))

    def _measured(self, made: Completion) -> Completion:
        row = TokenRow(made.prompt_token_ids, _untrained(made), weight=0.0)
        (logprobs,) = plain_logprobs(Forward(self.model), [row], torch.device("cpu"), tokens=TOKENS)
        return replace(made, logprobs=logprobs, full_logprobs_temperature_1=logprobs)


def _untrained(made: Completion) -> TrainedCompletion:
    return TrainedCompletion(
        made.token_ids, made.logprobs, made.kept_sizes, return_=0.0, advantage=0.0
    )


class Rewards:
    """The user's reward function, called as the service calls it, without the wire."""

    def __init__(self, function: Callable[..., Any], num_agents: int, batch_size: int = 1) -> None:
        self._function = RewardFunction(function, num_agents, batch_size)

    async def score(
        self,
        run_id: str,  # noqa: ARG002
        tasks: Sequence[Task],
        joint_actions: Sequence[JointAction],
        **_: Any,
    ) -> list[Score]:
        return self._function({task.id: task for task in tasks}, joint_actions)


class Transitions:
    """The user's transition, likewise."""

    def __init__(self, function: Callable[..., Any], num_agents: int) -> None:
        self._function = TransitionFunction(function, num_agents)

    async def transition(
        self,
        run_id: str,  # noqa: ARG002
        tasks: Sequence[Task],
        scored: Sequence[ScoredJointAction],
        **_: Any,
    ) -> list[TransitionResult]:
        by_id = {task.id: task for task in tasks}
        return [self._function(by_id[one.joint_action.task_id], one) for one in scored]
