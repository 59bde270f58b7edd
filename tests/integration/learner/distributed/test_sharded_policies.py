"""Policies of several ranks are those of one process: losses, weights, checkpoints, exports."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.integration.learner.distributed.cases import CASES, ROWS, minibatches_of
from tests.support.policies import make_model
from tests.support.ranks import torchrun
from torch import Tensor
from transformers import AutoModelForCausalLM

from antiphon.learner.checkpoints.state_files import read_state, write_state
from antiphon.learner.distributed.source import ModelSource
from antiphon.learner.policy.policy import Policy
from antiphon.learner.policy.reference import Reference
from antiphon.services.common.lora import SCALING

TWO_RANKS = ["plain", "bf16-wire", "small-steps", "reference-kl", "lora", "lora-bf16-wire"]
WEIGHED = ("loss", "grad_norm")
"""By importance ratios, of up to 200 here."""
STEPS = "tests.integration.learner.distributed.sharded_steps"


def train(folder: Path, ranks: int, **work: Any) -> Path:
    """Cases trained by so many ranks, in a folder with a model."""
    make_model(seed=4).save_pretrained(folder / "model")
    code, output = torchrun(ranks, STEPS, [str(folder), json.dumps(work)])
    assert code == 0, output
    return folder


def alone(name: str, folder: Path) -> Policy:
    """The same policy in this process alone."""
    case = CASES[name]
    source = ModelSource(agent=0, model=str(folder / "model"), lora=case.lora, seed=3)
    return Policy(0, source.load(), case.settings, wire_dtype=case.wire)


def assert_same(
    got: Mapping[str, Any],
    wanted: Mapping[str, Any],
    within: float,
    *,
    logprobs: float,
    largest: float,
) -> None:
    """Numbers within a share of their size; gaps are differences of numbers of size `logprobs`.

    A ratio is the exponential of a difference of log-probabilities: what these may be off by, of
    the largest one, it may be off by as a share of itself, and so may what ratios weigh.
    """
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        if key.startswith("ratio") or key in WEIGHED:
            assert got[key] == pytest.approx(value, rel=within * largest, abs=within), key
        elif isinstance(value, float):
            size = logprobs if key.startswith("logprob_gap") else 1.0
            assert got[key] == pytest.approx(value, rel=within, abs=within * size), key
        else:
            assert got[key] == value, key


def assert_same_weights(
    got: Mapping[str, Tensor], wanted: Mapping[str, Tensor], within: float
) -> None:
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(got[name].to(tensor.dtype), tensor, rtol=0, atol=within)


def assert_as_alone(folder: Path, name: str, *, within: float = 1e-6) -> None:
    policy = alone(name, folder)
    reference = Reference(0, policy.model, None, policy.wire_dtype)
    told = json.loads((folder / f"{name}.json").read_text())
    for step, got in enumerate(told["steps"]):
        minibatches = minibatches_of(step)
        of_all = [c.logprobs for minibatch in minibatches for n in minibatch for c in n.completions]
        largest = max(-logprob for of_one in of_all for logprob in of_one)
        wanted = asdict(policy.step(*minibatches))
        assert_same(got, wanted, within, logprobs=CASES[name].logprobs, largest=largest)
    assert told["optimizer_steps"] == policy.optimizer_steps
    wire = policy.wire_tensors()
    assert_same_weights(load_file(folder / f"{name}.safetensors"), wire, within)
    assert told["reference"] == reference.state_dict()
    for one, logprobs in zip((policy, reference), told["logprobs"], strict=True):
        for got, wanted in zip(logprobs, one.logprobs(ROWS, tokens=12), strict=True):
            assert got == pytest.approx(wanted, rel=within, abs=within)
    state = read_state(folder / name, "policy_0")
    assert_same_weights(state["masters"], policy.state_dict()["masters"], within)


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two_ranks")
    return train(folder, 2, cases=TWO_RANKS)


@pytest.mark.parametrize("name", TWO_RANKS)
def test_two_ranks_train_as_one_process(two_ranks: Path, name: str) -> None:
    assert_as_alone(two_ranks, name)


def test_what_changed_is_sent_alone_where_it_is_little(two_ranks: Path) -> None:
    """Each rank compares its own part; `Receiver` holds every push against its checksums."""
    pushes = {n: json.loads((two_ranks / f"{n}.json").read_text())["pushes"] for n in TWO_RANKS}
    assert pushes["small-steps"] == ["full", "delta", "delta", "delta"]
    assert pushes["plain"] == ["full"] * 4
    assert pushes["lora"] == ["full", "adapter", "adapter", "adapter"]


def test_the_scaling_of_an_adapter_is_sent_as_float32(two_ranks: Path) -> None:
    sent = load_file(two_ranks / "lora-bf16-wire.safetensors")
    wanted = torch.tensor(16 / math.sqrt(3), dtype=torch.float32)
    assert wanted.to(torch.bfloat16).float() != wanted
    scalings = [tensor for name, tensor in sent.items() if name.endswith(SCALING)]
    assert scalings
    for scaling in scalings:
        torch.testing.assert_close(scaling, wanted, rtol=0, atol=0)
    assert all(t.dtype == torch.bfloat16 for n, t in sent.items() if not n.endswith(SCALING))


def test_every_rank_writes_its_own_part_of_a_checkpoint(two_ranks: Path) -> None:
    parts = sorted((two_ranks / "plain" / "policy_0").glob("*.safetensors"))
    sizes = [sum(t.numel() for t in load_file(part).values()) for part in parts]
    whole = sum(p.numel() for p in make_model(seed=4).parameters())
    assert len(parts) == 2
    # Master and two moments of every parameter, once; and counts of steps.
    assert sum(sizes) == pytest.approx(3 * whole, abs=100)
    assert max(sizes) < 0.6 * sum(sizes)


def test_an_export_loads_as_any_model(two_ranks: Path) -> None:
    exported = AutoModelForCausalLM.from_pretrained(two_ranks / "plain" / "exported")
    trained = load_file(two_ranks / "plain.safetensors")
    own = exported.state_dict()
    assert exported.config.tie_word_embeddings
    assert_same_weights({name: own[name] for name in trained}, trained, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (4, {"cases": ["plain", "recomputed", "frozen", "reference-kl", "small-steps"]}),
        (4, {"cases": ["plain", "lora"], "placement": "per-agent"}),
        (3, {"cases": ["plain", "small-steps"], "placement": "per-agent", "offload": True}),
    ],
)
def test_any_number_and_placement_of_ranks_trains_as_one_process(
    tmp_path: Path, ranks: int, options: dict[str, Any]
) -> None:
    train(tmp_path, ranks, **options)
    for name in options["cases"]:
        assert_as_alone(tmp_path, name)


@pytest.mark.slow
def test_bf16_computes_with_the_weights_on_the_wire(tmp_path: Path) -> None:
    train(tmp_path, 2, cases=["bf16"])
    assert_as_alone(tmp_path, "bf16", within=0.05)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    """From one process to two ranks, to four, and back to one."""
    first = tmp_path / "one"
    first.mkdir()
    make_model(seed=4).save_pretrained(tmp_path / "model")
    policy = alone("plain", tmp_path)
    policy.step(*minibatches_of(0))
    write_state(first, "policy_0", policy.state_dict())
    two, four = tmp_path / "two", tmp_path / "four"
    train(two, 2, cases=["plain"], steps=[1, 2], resume=str(first))
    train(four, 4, cases=["plain"], steps=[2, 3], resume=str(two / "plain"))
    last = alone("plain", four)
    last.load_state_dict(read_state(four / "plain", "policy_0"))
    last.step(*minibatches_of(3))
    for step in (1, 2, 3):
        policy.step(*minibatches_of(step))
    assert last.optimizer_steps == policy.optimizer_steps == 4
    assert_same_weights(last.wire_tensors(), policy.wire_tensors(), 1e-6)
