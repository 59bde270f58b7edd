"""Agents that are trained through a LoRA adapter of peft: making, checking and naming one.

The adapter stays beside the base in every forward, here as on the services: nothing is merged, the
base is bitwise what it was, and what is sampled is what is trained. Only the adapter's A and B are
trained, checkpointed and, once a service has the base, pushed (`services.common.lora` names them).
"""

from __future__ import annotations

import copy
import re
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from antiphon.clients.types import FieldError
from antiphon.learner.config.lora import LoraSettings
from antiphon.services.common.lora import SCALING, A, B
from antiphon.services.common.tensors import wire_tensors

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

_FACTOR = re.compile(r"(?P<layer>.+)\.lora_(?P<which>[AB])\.(?P<adapter>.+)\.weight")


def is_adapted(model: object) -> TypeGuard[PeftModel]:
    """Whether a model is one of peft's."""
    peft = sys.modules.get("peft")  # a model of it cannot be there without it
    return peft is not None and isinstance(model, peft.PeftModel)


def base_of(model: Any) -> Any:
    """The model itself, with an adapter's layers in it where there is one."""
    return model.get_base_model() if is_adapted(model) else model


def with_adapter(model: PreTrainedModel, settings: LoraSettings, *, agent: int, seed: int) -> Any:
    """A model with a new adapter, whose A is drawn from the seed; the layers are put into `model`.

    Raises:
        FieldError: peft is not installed, the model has an adapter, or no layer is named so.
    """
    if is_adapted(model):
        raise FieldError(
            f"lora of agent {agent}", "settings, for a PeftModel", "either; it has an adapter"
        )
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError as error:
        raise FieldError(
            "lora", f"settings, without {error.name}", "pip install 'antiphon[lora]'"
        ) from error
    targets = settings.target_modules
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        use_rslora=settings.use_rslora,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.manual_seed((seed * 1_000_003 + agent) % 2**63)
        # That a tied head has an adapter matters to merging alone, which checks it.
        warnings.filterwarnings("ignore", message=".*tie_word_embeddings.*")
        warnings.filterwarnings("ignore", category=FutureWarning)  # peft asks transformers
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            raise FieldError(f"lora of agent {agent}", targets, str(error)) from error


def check_adapted(agent: int, model: PeftModel) -> None:
    """Refuse what cannot be trained and served as it is.

    Raises:
        FieldError: Names the agent and what to change.
    """
    where = f"agents[{agent}]"
    active = list(model.active_adapters)
    if len(active) != 1:
        raise FieldError(where, f"{len(active)} active adapters", "one: model.set_adapter(name)")
    config = model.peft_config[active[0]]
    if config.peft_type != "LORA":
        raise FieldError(where, f"a {config.peft_type} adapter", "a LoRA adapter")
    if config.lora_dropout:
        raise FieldError(
            f"{where}.peft_config.lora_dropout",
            config.lora_dropout,
            "0: what is sampled is what is trained, without dropout",
        )
    for name, layer in _lora_layers(model):
        if layer.merged or layer.disable_adapters:
            state = "merged" if layer.merged else "disabled"
            raise FieldError(f"{where}: {name}", f"a {state} adapter", "one beside its base")
        plain = isinstance(layer.base_layer, (nn.Linear, Conv1D)) and not layer.lora_embedding_A
        if not plain or getattr(layer, "lora_variant", {}).get(active[0]) is not None:
            raise FieldError(
                f"{where}: {name}", "another adapter than plain LoRA", "LoRA of linear layers"
            )
    for name, parameter in model.named_parameters():
        factor = _FACTOR.fullmatch(name)
        if parameter.requires_grad and (factor is None or factor["adapter"] != active[0]):
            raise FieldError(
                f"{where}: {name}",
                "a trained parameter that is not the active adapter's A or B",
                "requires_grad on those alone (bias 'none', no modules_to_save)",
            )


def sent_tensors(model: Any) -> dict[str, Tensor]:
    """What a model has on the wire, by name, sorted; tensors share its memory.

    Without an adapter these are its `wire_tensors`. With one they are those of the base, under
    the base's names, and the active adapter's (`services.common.lora`).
    """
    if not is_adapted(model):
        return wire_tensors(model)
    (active,) = model.active_adapters
    tensors: dict[str, Tensor] = {}
    for name, tensor in wire_tensors(model.get_base_model()).items():
        factor = _FACTOR.fullmatch(name)
        if factor is None:
            tensors[name.replace(".base_layer.", ".")] = tensor
        elif factor["adapter"] == active:
            tensors[factor["layer"] + (A if factor["which"] == "A" else B)] = tensor
    for name, layer in _lora_layers(model):
        tensors[name + SCALING] = torch.tensor(layer.scaling[active], dtype=torch.float32)
    return dict(sorted(tensors.items()))


def merged(model: PeftModel) -> PreTrainedModel:
    """A copy of the model with the adapter added to its weights, rounded to their number format.

    Raises:
        FieldError: The adapter of a tied head would change the embedding too.
    """
    base = model.get_base_model()
    embedding = base.get_input_embeddings()
    for name, layer in _lora_layers(model):
        if layer.base_layer.weight is embedding.weight:
            raise FieldError(
                name,
                "an adapter of a head that shares the embedding's weights",
                "the adapter alone, since merging it would change the embedding too",
            )
    whole: PreTrainedModel = copy.deepcopy(model).merge_and_unload()
    return whole


def _lora_layers(model: PeftModel) -> Iterator[tuple[str, Any]]:
    """Layers with the active adapter, by their names in the base."""
    from peft.tuners.lora import LoraLayer

    (active,) = model.active_adapters
    for name, module in model.get_base_model().named_modules():
        if isinstance(module, LoraLayer) and active in module.scaling:
            yield name, module
