"""The reference KL: what it costs an agent to leave the policy that it started as.

Per token t that was sampled, with log-probabilities under the full softmax at temperature 1,

    k3_t = exp(log ref_t - log pi_t) - (log ref_t - log pi_t) - 1        never below 0

(John Schulman's note "Approximating KL divergence", 2020). Its mean over tokens drawn from pi is
KL(pi || ref); where completions are sampled at another temperature, or with top_k or top_p, it is
a penalty of the same shape and not an unbiased estimate.

    return   pi as it was at sampling; the sum over a completion's tokens times beta is taken off
             the agent's return of it (returns.trained_returns). The gradient is that of REINFORCE
             with this penalty as a reward, not that of the reverse KL.
    loss     pi as it is now, with gradient; beta * sum_t w_t k3_t joins the loss, w_t as in
             `antiphon.learner.arithmetic.loss`, so over live nodes alone.

The reference is the policy's weights as they are on the wire when training starts, frozen.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from antiphon.clients.digest import weights_digest
from antiphon.clients.types import Completion, FieldError, TensorDtype
from antiphon.learner.checkpoints.state_files import Component
from antiphon.learner.config.magrpo import MAGRPOConfig
from antiphon.learner.policy.devices import OFFLOAD, usable_devices
from antiphon.learner.policy.forward import Forward
from antiphon.learner.policy.logprobs import plain_logprobs
from antiphon.learner.policy.micro_batches import Row, Tokens, plain_row
from antiphon.learner.rollout.tree import Node, ReferenceTerm
from antiphon.services.common.sampling import full_logprobs
from antiphon.services.common.tensors import TORCH_DTYPES, tensor_specs, wire_tensors


def k3(policy_logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """k3 of each token [...] from its log-probabilities [...]; differentiable in both."""
    gap = reference_logprobs - policy_logprobs
    return torch.expm1(gap) - gap


def reference_kl_loss(logits: Tensor, tokens: Tokens) -> Tensor:
    """Weighted sum of k3 over tokens, a scalar with gradient in their `logits` [K, V].

    Raises:
        FieldError: The samples carry no log-probabilities of a reference.
    """
    if tokens.reference_logprobs.numel() != len(tokens):
        raise FieldError(
            "completion.reference_logprobs",
            "none",
            "one per token, as the reference KL is a term of the loss",
        )
    now = full_logprobs(logits, tokens.token_ids, 1.0)
    return (tokens.weights * k3(now, tokens.reference_logprobs)).sum()


def reference_devices(config: MAGRPOConfig, num_agents: int) -> tuple[str | None, ...]:
    """Where each agent's reference is held; None is its policy's own device.

    Raises:
        FieldError: A list of another length, or a device that is not here.
    """
    devices = config.reference_devices
    if devices is None:
        return (None,) * num_agents
    return usable_devices(devices, num_agents, field="reference_devices")


class Reference:
    """A frozen copy of a model.

    Args:
        agent: The agent whose policy it is a copy of, the first of several.
        model: The policy's model as it is now, its weights those on the wire.
        device: Where the copy is held and computes, None for the model's own; OFFLOAD holds it in
            main memory, in the wire's number format, and computes on the model's device.
        wire_dtype: Number format of weights on the wire.
    """

    def __init__(
        self, agent: int, model: nn.Module, device: str | None, wire_dtype: TensorDtype
    ) -> None:
        self._agent = agent
        self._wire_dtype = wire_dtype
        own = next(model.parameters()).device
        self.device = own if device in (None, OFFLOAD) else torch.device(device)
        self._model = copy.deepcopy(model).requires_grad_(False).eval().to(self.device)
        self._forward = Forward(self._model)
        tensors = self._model.state_dict(keep_vars=True)
        self._tensors = {name: tensors[name] for name in wire_tensors(self._model)}
        self._compute = {name: tensor.dtype for name, tensor in self._tensors.items()}
        if self.device.type == "cpu" and own.type != "cpu":  # which is slow in anything else
            self._compute = dict.fromkeys(self._compute, torch.float32)
        self._held: dict[str, Tensor] | None = None
        if device == OFFLOAD:
            wire = TORCH_DTYPES[wire_dtype]
            self._held = {n: t.detach().to("cpu", wire) for n, t in self._tensors.items()}
            self._put(self._held)
        else:
            self._put({n: t.data.to(self._compute[n]) for n, t in self._tensors.items()})

    @property
    def nbytes(self) -> int:
        """Bytes that its weights take while it does not compute."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def state_dict(self) -> dict[str, Any]:
        """The digest of its weights as on the wire; the weights are those of the run's model."""
        held = self._tensors if self._held is None else self._held
        return {"digest": weights_digest(tensor_specs(held, self._wire_dtype)).hex()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Check that this is the reference that the run began with.

        Raises:
            FieldError: It has other weights, so the model that was given has been trained since.
        """
        check_same_reference(self._agent, self.state_dict()["digest"], state["digest"])

    def logprobs(
        self, rows: Sequence[Row], *, tokens: int, size: int | None = None
    ) -> list[tuple[float, ...]]:
        """Log-probabilities of completions, full softmax at temperature 1 (`plain_logprobs`)."""
        with self._computing() as forward:
            return plain_logprobs(forward, rows, self.device, tokens=tokens, size=size)

    @contextmanager
    def _computing(self) -> Iterator[Forward]:
        if self._held is None:
            yield self._forward
            return
        self._put({n: t.to(self.device, self._compute[n]) for n, t in self._held.items()})
        try:
            yield self._forward
        finally:
            self._put(self._held)

    def _put(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._tensors[name].data = tensor


def check_same_reference(agent: int, own: str, begun_with: str) -> None:
    """Refuse a reference that is not the one that the run began with.

    Args:
        agent: Whose it is.
        own: Digest of its weights as on the wire.
        begun_with: That of the run's first model.

    Raises:
        FieldError: They differ, so the model that was given has been trained since.
    """
    if own != begun_with:
        raise FieldError(
            f"agents[{agent}]",
            f"weights with digest {own[:12]}",
            f"{begun_with[:12]}, those of the model that the run began with: its reference KL is "
            "measured against them",
        )


class Measured(Protocol):
    """A policy in training or its reference, as a reference KL looks at it."""

    def logprobs(
        self, rows: Sequence[Row], *, tokens: int, size: int | None = None
    ) -> list[tuple[float, ...]]:
        """Log-probabilities of completions, full softmax at temperature 1 (`plain_logprobs`)."""
        ...


class FrozenReference(Measured, Component, Protocol):
    """A reference; that it is the one which the run began with is checked when it is resumed."""


T = TypeVar("T")


class Each(Protocol):
    """Runs a function of a policy's number for every policy, side by side."""

    async def __call__(self, function: Callable[[int], T]) -> list[T]:
        """Its results, policy 0 first."""
        ...


class References:
    """The references of all policies. Measures trees before the update that they lead to.

    Attributes:
        references: One per policy.

    Args:
        policies: The policies in training.
        references: The reference of each.
        agents: The agents that each policy plays.
        tokens: Most rows times columns of one forward.
        size: Most completions of one forward; None sets no limit.
    """

    def __init__(
        self,
        policies: Sequence[Measured],
        references: Sequence[FrozenReference],
        agents: Sequence[Sequence[int]],
        *,
        tokens: int,
        size: int | None = None,
    ) -> None:
        self._policies = policies
        self.references = references
        self._agents = agents
        self._tokens = tokens
        self._size = size

    async def measure(self, roots: Sequence[Node], each: Each) -> None:
        """Give every node of the trees its `references`; weights must be those sampled from.

        Args:
            roots: The trees of a rollout batch.
            each: Runs the work of every policy, side by side.
        """
        nodes = [node for root in roots for node in root.walk()]
        measured = await each(lambda policy: self._terms(policy, nodes))
        for place, node in enumerate(nodes):
            by_agent = {
                agent: measured[policy][place * len(agents) + number]
                for policy, agents in enumerate(self._agents)
                for number, agent in enumerate(agents)
            }
            node.references = tuple(by_agent[agent] for agent in sorted(by_agent))

    def _terms(self, policy: int, nodes: Sequence[Node]) -> list[tuple[ReferenceTerm, ...]]:
        """Terms of each node's completions, for each agent of a policy in turn."""
        groups = [node.completions[agent] for node in nodes for agent in self._agents[policy]]
        completions = [completion for group in groups for completion in group]
        rows = [plain_row(c.prompt_token_ids, c.token_ids) for c in completions]
        tokens, size = self._tokens, self._size
        reference = self.references[policy].logprobs(rows, tokens=tokens, size=size)
        unknown = [r for r, c in zip(rows, completions, strict=True) if not _engines(c)]
        own = iter(self._policies[policy].logprobs(unknown, tokens=tokens, size=size))
        terms = iter(
            [
                _term(_engines(completion) or next(own), logprobs)
                for completion, logprobs in zip(completions, reference, strict=True)
            ]
        )
        return [tuple(next(terms) for _ in group) for group in groups]


def _engines(completion: Completion) -> tuple[float, ...]:
    """The engine's log-probabilities under the full softmax at temperature 1, where it gave them.

    They are those of the policy as it was at each token, whatever weights have come since.
    """
    return completion.full_logprobs_temperature_1


def _term(policy: Sequence[float], reference: tuple[float, ...]) -> ReferenceTerm:
    of_policy = torch.tensor(policy, dtype=torch.float64)
    of_reference = torch.tensor(reference, dtype=torch.float64)
    return ReferenceTerm(kl=k3(of_policy, of_reference).sum().item(), logprobs=reference)
