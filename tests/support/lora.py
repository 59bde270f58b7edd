"""LoRA adapters as peft makes them, and their tensors under the names of the wire."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from torch import Tensor, nn

TARGETS = ("q_proj", "v_proj", "down_proj")


def peft_model(
    model: nn.Module,
    seed: int,
    *,
    r: int = 3,
    alpha: float = 4,
    targets: Sequence[str] = TARGETS,
    trained: bool = True,
    **options: Any,
) -> PeftModel:
    """An adapter around a copy of a model; `trained` draws B too, which peft starts at zero."""
    config = LoraConfig(
        r=r,
        lora_alpha=alpha,
        target_modules=list(targets),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
        **options,
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's about tied heads
        torch.manual_seed(seed)
        peft = get_peft_model(copy.deepcopy(model), config)
        if trained:
            for name, parameter in peft.named_parameters():
                if ".lora_B." in name:
                    nn.init.normal_(parameter, std=1.0)
    return peft.eval()


def adapter_tensors(peft: PeftModel) -> dict[str, Tensor]:
    """An adapter's tensors by their names on the wire, from what peft itself would save."""
    config = peft.peft_config["default"]
    saved = get_peft_model_state_dict(peft)
    tensors = {name.removeprefix("base_model.model."): t.detach() for name, t in saved.items()}
    tensors = {n: t for n, t in tensors.items() if ".lora_A." in n or ".lora_B." in n}
    scaling = torch.tensor(config.lora_alpha / config.r, dtype=torch.float32)
    for name in [name for name in tensors if name.endswith(".lora_A.weight")]:
        tensors[name.replace(".lora_A.weight", ".lora_scaling")] = scaling
    return dict(sorted(tensors.items()))
