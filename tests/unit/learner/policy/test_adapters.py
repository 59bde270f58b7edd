from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tests.support.lora import adapter_tensors, peft_model
from tests.support.models import tiny_model, tiny_tokenizer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from antiphon.clients.types import FieldError
from antiphon.learner.config.lora import LoraSettings
from antiphon.learner.policy.adapters import (
    base_of,
    check_adapted,
    is_adapted,
    merged,
    sent_tensors,
    with_adapter,
)
from antiphon.learner.run.setup import save_agent
from antiphon.services.common.lora import check_adapter, is_adapter_tensor
from antiphon.services.common.tensors import wire_tensors

IDS = torch.tensor([[5, 6, 7, 8]])


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    return tiny_tokenizer(tmp_path / "tokenizer")


@pytest.fixture
def model(tokenizer: Any) -> nn.Module:
    return tiny_model(tokenizer, 0)


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def test_a_new_adapter_starts_from_the_model_as_it_is(model: nn.Module) -> None:
    """B is zero, A follows from seed and agent, and the caller's random state is left alone."""
    before, state = logits(model), torch.get_rng_state()
    settings = LoraSettings(r=2, alpha=6, target_modules=["q_proj", "up_proj"])
    first, again, other, elsewhere = (
        with_adapter(copy.deepcopy(model), settings, agent=agent, seed=seed)
        for agent, seed in ((0, 1), (0, 1), (1, 1), (0, 2))
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(logits(first), before)
    trained = {n for n, p in first.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 2 * 2  # A and B of two layers in two blocks
    assert all(".lora_A." in name or ".lora_B." in name for name in trained)
    drawn = [
        torch.cat([t.flatten() for t in sent_tensors(m).values()])
        for m in (first, again, other, elsewhere)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[3])
    scaling = sent_tensors(first)["model.layers.0.mlp.up_proj.lora_scaling"]
    assert (scaling.item(), scaling.dtype, scaling.shape) == (3.0, torch.float32, ())


def test_all_linear_layers_but_the_head_are_adapted_unless_named(model: nn.Module) -> None:
    adapted = with_adapter(model, LoraSettings(), agent=0, seed=0)
    layers = {n.rsplit(".", 3)[-3] for n in sent_tensors(adapted) if n.endswith("lora_A.weight")}
    assert layers == {f"{one}_proj" for one in ("q", "k", "v", "o", "gate", "up", "down")}


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("targets", [["q_proj", "down_proj"], ["v_proj", "lm_head"]])
def test_what_is_sent_is_the_base_under_its_own_names_and_the_adapter(
    tokenizer: Any, tie: bool, targets: list[str]
) -> None:
    model = tiny_model(tokenizer, 0, tie)
    adapted = peft_model(model, 1, targets=targets)
    sent, plain = sent_tensors(adapted), wire_tensors(model)
    assert list(sent) == sorted(sent)
    adapter = {name: t for name, t in sent.items() if is_adapter_tensor(name)}
    base = {name: t for name, t in sent.items() if name not in adapter}
    assert base.keys() == plain.keys()
    assert all(torch.equal(base[name], plain[name]) for name in plain)
    wanted = adapter_tensors(adapted)
    assert adapter.keys() == wanted.keys()
    assert all(torch.equal(adapter[name], wanted[name]) for name in wanted)
    check_adapter(model, ((n, tuple(t.shape)) for n, t in adapter.items()), "adapter")
    name = next(n for n in adapter if n.endswith("lora_B.weight"))
    adapter[name].add_(1.0)  # shares the model's memory
    assert torch.equal(sent_tensors(adapted)[name], adapter[name])
    assert sent_tensors(model).keys() == plain.keys()
    assert (is_adapted(adapted), is_adapted(model)) == (True, False)
    assert base_of(model) is model
    assert torch.equal(logits(base_of(adapted)), logits(adapted))


def test_only_the_active_adapter_is_sent(model: nn.Module) -> None:
    adapted = peft_model(model, 1, targets=["q_proj"])
    adapted.add_adapter("other", LoraConfig(r=5, target_modules=["q_proj", "k_proj"]))
    adapted.set_adapter("other")
    check_adapted(0, adapted)
    sent = sent_tensors(adapted)
    assert sent["model.layers.0.self_attn.q_proj.lora_A.weight"].shape == (5, 16)
    assert "model.layers.0.self_attn.k_proj.lora_B.weight" in sent
    assert sum(map(is_adapter_tensor, sent)) == 3 * 2 * 2


def with_merged(model: PeftModel) -> PeftModel:
    model.merge_adapter()
    return model


def with_trained_norm(model: PeftModel) -> PeftModel:
    model.base_model.model.model.norm.weight.requires_grad_(True)
    return model


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda m: peft_model(m, 0, use_dora=True), "another adapter than plain LoRA"),
        (lambda m: peft_model(m, 0, targets=["embed_tokens"]), "LoRA of linear layers"),
        (lambda m: peft_model(m, 0, bias="lora_only"), None),
        (lambda m: peft_model(m, 0, lora_bias=True), r"lora_B\.default\.bias"),
        (lambda m: peft_model(m, 0, modules_to_save=["norm"]), "modules_to_save"),
        (lambda m: with_merged(peft_model(m, 0)), "a merged adapter"),
        (lambda m: with_trained_norm(peft_model(m, 0)), r"norm\.weight: got a trained parameter"),
        (
            lambda m: get_peft_model(m, LoraConfig(lora_dropout=0.5, target_modules=["q_proj"])),
            r"lora_dropout: got 0\.5, wanted 0",
        ),
    ],
)
def test_adapters_that_cannot_be_served_are_refused_by_name(
    model: nn.Module, make: Any, text: str | None
) -> None:
    adapted = make(model)
    if text is None:  # this model has no biases: there is nothing to refuse
        check_adapted(3, adapted)
        return
    with pytest.raises(FieldError, match=text) as caught:
        check_adapted(3, adapted)
    assert "agents[3]" in str(caught.value)


def test_settings_that_name_nothing_are_refused(model: nn.Module) -> None:
    with pytest.raises(FieldError, match=r"lora of agent 1: got \('nothing',\)"):
        with_adapter(model, LoraSettings(target_modules=["nothing"]), agent=1, seed=0)
    with pytest.raises(FieldError, match="settings, for a PeftModel"):
        with_adapter(peft_model(model, 0), LoraSettings(), agent=1, seed=0)
    with pytest.raises(ValueError, match=r"got 0\.1, wanted 0"):
        LoraSettings(dropout=0.1)


def test_the_adapter_is_saved_alone_and_merged_where_asked_for(
    model: nn.Module, tokenizer: Any, tmp_path: Path
) -> None:
    plain = copy.deepcopy(model)
    adapted = peft_model(model, 1)
    before, wanted = copy.deepcopy(adapted.state_dict()), logits(adapted)
    save_agent(tmp_path / "agent", adapted, tokenizer, merge=True)
    names = {file.name for file in (tmp_path / "agent").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json"} <= names
    assert "model.safetensors" not in names
    loaded = PeftModel.from_pretrained(plain, tmp_path / "agent")
    assert torch.equal(logits(loaded), wanted)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "agent" / "merged")
    torch.testing.assert_close(logits(whole), wanted, atol=1e-5, rtol=1e-5)
    assert all(torch.equal(t, before[n]) for n, t in adapted.state_dict().items())


def test_an_adapter_of_a_tied_head_is_never_merged(tokenizer: Any) -> None:
    tied, untied = (
        peft_model(tiny_model(tokenizer, 0, tie), 1, targets=["lm_head"]) for tie in (True, False)
    )
    with pytest.raises(FieldError, match="shares the embedding's weights"):
        merged(tied)
    torch.testing.assert_close(logits(merged(untied)), logits(untied), atol=1e-5, rtol=1e-5)
