"""One agent's policy: a model that is trained in place, and the optimiser that trains it.

What is sampled is what is trained: the model's weights are at every moment those on the wire,

    model = round(master)        to the wire's number format, nearest even

computed in `compute_dtype`, float32 on a CPU unless told otherwise. The float32 master weights take
the optimiser's step (`antiphon.learner.policy.optimizer`), so updates far below a bf16 unit in the
last place add up instead of being rounded away. Where the wire is float32, master and model are
one. A minibatch without a live node makes no step: nothing changes, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from antiphon.clients.types import FieldError, TensorDtype
from antiphon.learner.arithmetic.loss import (
    RATIO_CAP,
    LossStats,
    LossTokens,
    policy_loss,
    token_weights,
)
from antiphon.learner.arithmetic.samples import TrainingSample
from antiphon.learner.config.optimizer import OptimizerSettings
from antiphon.learner.policy.adapters import base_of, check_adapted, is_adapted, sent_tensors
from antiphon.learner.policy.forward import Forward
from antiphon.learner.policy.gradient import add_gradient
from antiphon.learner.policy.logprobs import (
    logits_logprobs,
    needs_whole_logits,
    plain_logprobs,
    support_logprobs,
)
from antiphon.learner.policy.micro_batches import (
    Pack,
    Row,
    Tokens,
    collate,
    idle_pack,
    split_rows,
)
from antiphon.learner.policy.number_formats import ComputeDtype, floating
from antiphon.learner.policy.optimizer import MasterOptimizer
from antiphon.learner.policy.ranks import Ranks
from antiphon.learner.policy.recompute import layers_of, recomputed
from antiphon.learner.policy.reference import reference_kl_loss
from antiphon.learner.weights.wire_weights import OwnWeights, WireWeights

LEAN_FROM = 1_000_000
"""Parameters from which passes over memory weigh more than what Python does for each module."""
MICRO_BATCH_TOKENS = 1024


def is_small(model: nn.Module) -> bool:
    """Whether a model's steps take most of their time in Python, one thread at a time."""
    return sum(parameter.numel() for parameter in model.parameters()) < LEAN_FROM


@dataclass(frozen=True, kw_only=True)
class PolicySettings(OptimizerSettings):
    """How a policy is trained.

    `temperature` and `max_new_tokens` are those of the sampling, `max_staleness` above 0 truncates
    ratios (loss.RATIO_CAP). `micro_batch_tokens` and `micro_batch_size` (completions) bound the
    memory of a forward and change no result but by rounding. `reference_kl_coef` is the weight of
    the reference KL as a term of the loss, 0 for none (`antiphon.learner.policy.reference`).
    `activation_checkpointing` computes layers again going backward
    (`antiphon.learner.policy.recompute`).
    A policy that is not `trainable` takes no step. `compute_dtype` is what the forward computes in
    (`antiphon.learner.policy.number_formats`), float32 where the wire is.
    """

    temperature: float
    max_new_tokens: int
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    importance_ratio: bool = True
    loss_normalization: str = "sequence"
    logprob_support: str = "sampled"
    max_staleness: int = 0
    micro_batch_tokens: int = MICRO_BATCH_TOKENS
    micro_batch_size: int | None = None
    reference_kl_coef: float = 0.0
    activation_checkpointing: bool = False
    trainable: bool = True
    compute_dtype: str = ComputeDtype.AUTO


@dataclass(frozen=True)
class StepStats:
    """What one optimiser step did.

    Means and maxima are over the live nodes' tokens and 0 where there are none. `grad_norm` is that
    before clipping. `logprob_gap` is |log pi_learner - log pi_engine|, `entropy` that of the
    distribution that the log-probabilities are under (exact, in nats), `forced_tokens` those that
    the learner's own kept set had left out. `clip_fraction` is the share of tokens whose gradient
    the clip took, `truncated_fraction` that of tokens whose ratio was above the cap,
    `reference_kl_loss` what the KL adds to `loss`; these two are None where the settings have no
    cap and no such term.
    """

    stepped: bool
    live_nodes: int
    dead_nodes: int
    tokens: int = 0
    loss: float = 0.0
    grad_norm: float = 0.0
    learning_rate: float = 0.0
    ratio_mean: float = 0.0
    ratio_max: float = 0.0
    clip_fraction: float = 0.0
    truncated_fraction: float | None = None
    logprob_gap_mean: float = 0.0
    logprob_gap_max: float = 0.0
    entropy: float = 0.0
    reference_kl_loss: float | None = None
    forced_tokens: int = 0


class Policy:
    """An agent's model in training.

    Attributes:
        agent: The agent, from 0.
        model: The module that was given, trained in place.
        forward: What it computes of a micro-batch.
        wire_dtype: Number format of its weights on the wire.
    """

    def __init__(
        self,
        agent: int,
        model: nn.Module,
        settings: PolicySettings,
        *,
        wire_dtype: TensorDtype = TensorDtype.BFLOAT16,
        ranks: Ranks | None = None,
    ) -> None:
        """Round the model's weights to `wire_dtype` and make it compute with them, in eval mode.

        Args:
            agent: The agent, from 0.
            model: What is trained; with `ranks`, this process's part of it.
            settings: How it is trained.
            wire_dtype: Number format of its weights on the wire.
            ranks: The processes that train it together; None for this one alone.

        Raises:
            FieldError: No parameter of the model requires a gradient.
        """
        self.agent = agent
        self.model = model
        self.settings = settings
        self.wire_dtype = wire_dtype
        self._ranks = ranks or Ranks()
        if is_adapted(model):
            check_adapted(agent, model)
        self._training = {module: module.training for module in model.modules()}
        stored = model.state_dict(keep_vars=True).keys()
        self._dtypes = {n: tensor.dtype for n, tensor in floating(model) if n in stored}
        self._parameters = {
            n: p for n, p in model.named_parameters() if p.requires_grad and settings.trainable
        }
        if settings.trainable and not self._parameters:
            raise FieldError(
                f"agents[{agent}]",
                "a model without a parameter that requires a gradient",
                "requires_grad on what is to be trained",
            )
        model.eval()
        compute = settings.compute_dtype
        self._ranks.prepare(base_of(model), self.wire_tensors(), wire_dtype, compute)
        self._optimizer = MasterOptimizer(
            self._parameters, settings, wire_dtype=wire_dtype, ranks=self._ranks
        )
        # Gradients of micro-batches are added in float32.
        self._low_precision = any(p.dtype != torch.float32 for p in self._parameters.values())
        recomputing = settings.activation_checkpointing and settings.trainable
        self._layers = layers_of(model) if recomputing else []
        self.forward = Forward(model)
        self._leaner = nullcontext if is_small(model) else self.forward.lean

    @property
    def optimizer_steps(self) -> int:
        """Optimiser steps so far."""
        return self._optimizer.steps

    def step(self, *minibatches: Sequence[TrainingSample]) -> StepStats:
        """Take one optimiser step, none where every node is dead or the policy is frozen.

        Args:
            minibatches: Whose gradients are averaged (gradient accumulation), usually one. Those
                without a live node are in no denominator.

        Raises:
            FloatingPointError: The gradient is not finite; weights and optimiser are unchanged.
            FieldError: A sample lacks what the settings need.
        """
        live = [[node for node in minibatch if not node.dead] for minibatch in minibatches]
        nodes = sum(len(minibatch) for minibatch in minibatches)
        live = [minibatch for minibatch in live if minibatch]
        live_nodes = sum(len(minibatch) for minibatch in live)
        if not live or not self._parameters:
            return StepStats(stepped=False, live_nodes=live_nodes, dead_nodes=nodes - live_nodes)
        optimizer = self._optimizer
        try:
            stats = self._backward(live)
            grad_norm = optimizer.gradient_norm()
            if not math.isfinite(grad_norm):
                raise FloatingPointError(
                    f"agent {self.agent}, optimiser step {self.optimizer_steps + 1}: the norm of "
                    f"the gradient is {grad_norm} (loss {stats.loss}); weights are unchanged. "
                    "Check the range of the rewards and the learning rate."
                )
            learning_rate = optimizer.learning_rate
            optimizer.step(grad_norm)
        finally:
            optimizer.drop_gradients()
        return StepStats(
            stepped=True,
            live_nodes=live_nodes,
            dead_nodes=nodes - live_nodes,
            tokens=stats.tokens,
            loss=stats.loss,
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            ratio_mean=stats.ratio_sum / stats.tokens,
            ratio_max=stats.ratio_max,
            clip_fraction=stats.clipped / stats.tokens,
            truncated_fraction=stats.truncated / stats.tokens
            if self.settings.max_staleness > 0
            else None,
            logprob_gap_mean=stats.gap_sum / stats.tokens,
            logprob_gap_max=stats.gap_max,
            entropy=stats.entropy_sum / stats.tokens,
            reference_kl_loss=stats.kl_loss if self.settings.reference_kl_coef > 0 else None,
            forced_tokens=stats.forced,
        )

    def wire_tensors(self) -> dict[str, Tensor]:
        """The weights to publish by name, sharing the model's memory, exact in `wire_dtype`.

        With an adapter: those of the base and the adapter's, as `adapters.sent_tensors` names them.
        """
        return sent_tensors(self.model)

    def wire_weights(self) -> WireWeights:
        """The weights, as a publisher asks for them."""
        return OwnWeights(self.wire_tensors, self.wire_dtype)

    def logprobs(
        self, rows: Sequence[Row], *, tokens: int, size: int | None = None
    ) -> list[tuple[float, ...]]:
        """Log-probabilities of completions, full softmax at temperature 1 (`plain_logprobs`)."""
        device = next(self.model.parameters()).device
        return plain_logprobs(self.forward, rows, device, tokens=tokens, size=size)

    def state_dict(self) -> dict[str, Any]:
        """All that bitwise continuation needs, as tensors and numbers; tensors are live."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave. Tensors are copied.

        Raises:
            FieldError: The state is of another model; nothing was changed.
        """
        self._optimizer.load_state_dict(state)

    def restore_dtype(self) -> None:
        """Hand the model back: its own number format, its training mode, no gradients.

        The number format returns only where every weight survives exactly, so the model that the
        caller holds is the one that was sampled from and trained; else it stays as computed.
        """
        self._optimizer.drop_gradients()
        named = dict(floating(self.model))
        weights = {name: named[name] for name in self._dtypes}
        exact = all(
            torch.equal(tensor.to(self._dtypes[name]).to(tensor.dtype), tensor)
            for name, tensor in weights.items()
        )
        if exact:
            for name, tensor in weights.items():
                tensor.data = tensor.data.to(self._dtypes[name])
        for module, training in self._training.items():
            module.training = training

    def _backward(self, minibatches: Sequence[Sequence[TrainingSample]]) -> LossStats:
        """Leave the gradient of live minibatches in the masters."""
        settings = self.settings
        self._optimizer.drop_gradients()
        rows = [row for minibatch in minibatches for row in self._rows(minibatch, len(minibatches))]
        batches = split_rows(
            self._ranks.share(rows),
            tokens=settings.micro_batch_tokens,
            size=settings.micro_batch_size,
            shared_up_to=self.forward.shared_up_to,
        )
        rounds = self._ranks.rounds(len(batches))
        total = LossStats()
        for packs in batches:
            total += self._add_gradient(packs)
        for _ in range(rounds - len(batches)):
            self._add_gradient([idle_pack()])
        self._optimizer.gather()
        return self._ranks.total(total)

    def _add_gradient(self, packs: Sequence[Pack]) -> LossStats:
        """Add the gradient of one micro-batch to the masters'."""
        support, device = self.settings.logprob_support, next(self.model.parameters()).device
        batch = collate(packs, support, device)
        whole_logits = self.settings.reference_kl_coef > 0 or needs_whole_logits(
            self.forward, batch.tokens, support
        )
        with torch.enable_grad(), self._leaner(), recomputed(self._layers):
            stats = add_gradient(self.forward, batch, self._loss, whole_logits=whole_logits)
        if self._low_precision:
            self._optimizer.gather()
        return stats

    def _loss(self, states: Tensor, tokens: Tokens) -> tuple[Tensor, LossStats]:
        settings = self.settings
        temperature, support = settings.temperature, settings.logprob_support
        with_kl = settings.reference_kl_coef > 0
        if with_kl:
            logits = self.forward.logits(states)
            now = logits_logprobs(logits, tokens, temperature=temperature, support=support)
        else:
            now = support_logprobs(
                self.forward, states, tokens, temperature=temperature, support=support
            )
        loss, stats = policy_loss(
            LossTokens(now.logprobs, tokens.engine_logprobs, tokens.advantages, tokens.weights),
            importance_ratio=settings.importance_ratio,
            clip_low=settings.clip_ratio_low,
            clip_high=settings.clip_ratio_high,
            ratio_cap=RATIO_CAP if settings.max_staleness > 0 else None,
        )
        if with_kl:
            kl = settings.reference_kl_coef * reference_kl_loss(logits, tokens)
            loss = loss + kl
            stats = replace(stats, loss=loss.item(), kl_loss=kl.item())
        entropy, forced = now.entropy.sum().item(), int(now.forced.sum().item())
        return loss, replace(stats, entropy_sum=entropy, forced=forced)

    def _rows(self, nodes: Sequence[TrainingSample], minibatches: int) -> Iterator[Row]:
        """A minibatch's completions, weighed as one of so many minibatches."""
        settings = self.settings
        weights = token_weights(nodes, settings.loss_normalization, settings.max_new_tokens)
        for node, node_weights in zip(nodes, weights, strict=True):
            for completion, weight in zip(node.completions, node_weights, strict=True):
                yield Row(node.prompt_token_ids, completion, weight / minibatches)
