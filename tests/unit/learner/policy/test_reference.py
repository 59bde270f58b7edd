"""The reference KL: k3, the frozen copy, and what is measured on trees."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import pytest
import torch
from tests.support.trees import make_completion, make_node
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from antiphon.clients.types import FieldError, TensorDtype
from antiphon.learner.arithmetic.samples import TrainedCompletion
from antiphon.learner.policy.forward import Forward
from antiphon.learner.policy.logprobs import plain_logprobs
from antiphon.learner.policy.micro_batches import Row
from antiphon.learner.policy.policy import Policy, PolicySettings
from antiphon.learner.policy.reference import OFFLOAD, Reference, References, k3
from antiphon.learner.rollout.tree import Node

T = TypeVar("T")
BF16 = TensorDtype.BFLOAT16
VOCABULARY = 32


def make_policy(seed: int = 0) -> Policy:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    settings = PolicySettings(temperature=0.6, max_new_tokens=8, learning_rate=0.1)
    return Policy(0, LlamaForCausalLM(config), settings, wire_dtype=BF16)


def rows_of(*completions: tuple[Sequence[int], Sequence[int]]) -> list[Row]:
    return [
        Row(
            tuple(prompt),
            TrainedCompletion(tuple(ids), (0.0,) * len(ids), (1,) * len(ids), 0.0, 0.0),
            0.0,
        )
        for prompt, ids in completions
    ]


def by_hand(model: nn.Module, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """Log-probabilities under the full softmax at temperature 1, one completion, no padding."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0].double()
    logprobs = logits.log_softmax(-1)
    return [logprobs[len(prompt) + c - 1, token].item() for c, token in enumerate(tokens)]


def test_k3_by_hand() -> None:
    policy = torch.tensor([math.log(0.5), math.log(0.25), math.log(0.1)], dtype=torch.float64)
    reference = torch.tensor([math.log(0.25), math.log(0.5), math.log(0.1)], dtype=torch.float64)
    wanted = [0.5 - math.log(0.5) - 1, 2 - math.log(2) - 1, 0.0]
    assert k3(policy, reference).tolist() == pytest.approx(wanted, abs=1e-12)


def test_the_mean_of_k3_under_the_policy_is_the_kl_divergence() -> None:
    """Schulman, "Approximating KL divergence": sum_x pi(x) k3(x) = KL(pi || ref), exactly."""
    torch.manual_seed(0)
    pi, ref = torch.randn(2, 9, dtype=torch.float64).log_softmax(-1)
    assert (pi.exp() * k3(pi, ref)).sum().item() == pytest.approx(
        (pi.exp() * (pi - ref)).sum().item(), abs=1e-12
    )
    assert bool((k3(pi, ref) >= 0).all())


ROWS = [((5,), (20, 21, 2)), ((6, 7, 8, 9), (2,)), ((5,), (22, 2)), ((30, 31), (1, 2, 3, 4, 5))]


@pytest.mark.parametrize("device", ["cpu", OFFLOAD])
def test_a_reference_answers_as_the_start_weights_whatever_the_policy_becomes(device: str) -> None:
    policy = make_policy()
    start = copy.deepcopy(policy.model)
    reference = Reference(0, policy.model, device, BF16)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.5)
    wanted = [by_hand(start, prompt, tokens) for prompt, tokens in ROWS]
    for _ in range(2):  # offloaded weights come back and go again
        got = reference.logprobs(rows_of(*ROWS), tokens=12)
        assert [len(row) for row in got] == [3, 1, 2, 5]
        for one, other in zip(got, wanted, strict=True):
            assert one == pytest.approx(other, abs=1e-5)


def test_an_offloaded_reference_rests_in_the_wires_format_and_loses_nothing() -> None:
    policy = make_policy()
    held, offloaded = (Reference(0, policy.model, device, BF16) for device in ("cpu", OFFLOAD))
    assert offloaded.nbytes * 2 == held.nbytes
    one, two = (r.logprobs(rows_of(*ROWS), tokens=64) for r in (held, offloaded))
    assert one == two
    assert offloaded.nbytes * 2 == held.nbytes


@dataclass
class Model:
    """A policy as References sees it."""

    forward: Forward

    def logprobs(
        self, rows: Sequence[Row], *, tokens: int, size: int | None = None
    ) -> list[tuple[float, ...]]:
        return plain_logprobs(self.forward, rows, torch.device("cpu"), tokens=tokens, size=size)


async def in_turn(function: Callable[[int], T], count: int) -> list[T]:
    return [function(policy) for policy in range(count)]


def tree() -> Node:
    root = make_node([0.0, 1.0], children={1: make_node([1.0, 2.0], path=(1,))})
    for node in root.walk():
        node.completions = tuple(
            tuple(
                make_completion(node.prompts[a].token_ids, (3 + a + g + node.turn, 4 + g, 2))
                for g in range(2)
            )
            for a in range(2)
        )
    return root


def wanted_kl(policy: nn.Module, reference: nn.Module, node: Node, agent: int, g: int) -> float:
    completion = node.completions[agent][g]
    ids = completion.prompt_token_ids, completion.token_ids
    pairs = zip(by_hand(policy, *ids), by_hand(reference, *ids), strict=True)
    return sum(math.exp(r - p) - (r - p) - 1 for p, r in pairs)


@pytest.mark.parametrize("agents", [((0,), (1,)), ((0, 1),)])
async def test_every_completion_of_a_tree_is_measured_under_its_own_policy(
    agents: tuple[tuple[int, ...], ...],
) -> None:
    policies = [make_policy(seed) for seed in range(len(agents))]
    references = [Reference(0, p.model, "cpu", BF16) for p in policies]
    start = [copy.deepcopy(p.model) for p in policies]
    moved = [make_policy(seed + 7).model for seed in range(len(agents))]
    roots = [tree(), tree()]
    made = References([Model(Forward(m)) for m in moved], references, agents, tokens=64)
    await made.measure(roots, lambda function: in_turn(function, len(agents)))
    policy_of = {agent: number for number, group in enumerate(agents) for agent in group}
    for root in roots:
        for node in root.walk():
            for agent, group in enumerate(node.references):
                number = policy_of[agent]
                for g, term in enumerate(group):
                    kl = wanted_kl(moved[number], start[number], node, agent, g)
                    assert term.kl == pytest.approx(kl, abs=1e-4)
                    assert term.kl > 1e-3
                    assert len(term.logprobs) == 3


async def test_what_the_engine_said_of_the_policy_counts_where_it_said_it() -> None:
    """So the penalty is that of the policy as it was when the token was sampled."""
    policy = make_policy()
    node = make_node([0.0, 1.0], num_agents=1)
    told, silent = node.completions[0]
    said = (-1.0, -2.0)
    node.completions = ((replace(told, full_logprobs_temperature_1=said), silent),)
    made = References([policy], [Reference(0, policy.model, "cpu", BF16)], [(0,)], tokens=64)
    await made.measure([node], lambda function: in_turn(function, 1))
    first, second = node.references[0]
    reference = by_hand(policy.model, told.prompt_token_ids, told.token_ids)
    by_engine = sum(math.exp(r - p) - (r - p) - 1 for p, r in zip(said, reference, strict=True))
    assert first.kl == pytest.approx(by_engine, abs=1e-5)
    assert second.kl == pytest.approx(0.0, abs=1e-9)  # the policy has not moved


@pytest.mark.parametrize("device", ["cpu", OFFLOAD])
def test_a_resumed_runs_reference_must_be_the_model_that_the_run_began_with(device: str) -> None:
    """A model that has been trained since would measure the KL to itself."""
    policy = make_policy()
    state = Reference(0, policy.model, device, BF16).state_dict()
    Reference(0, make_policy().model, "cpu", BF16).load_state_dict(state)
    with pytest.raises(FieldError, match=r"agents\[1\]: .*the model that the run began with"):
        Reference(1, make_policy(seed=1).model, device, BF16).load_state_dict(state)
