"""A Llama's forward written out, so that a server of one starts without transformers."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional


class Llama:
    """Logits of one sequence, in float32.

    Args:
        folder: With config.json and safetensors.
        adapter: A LoRA adapter's folder, as peft saves it.
    """

    def __init__(self, folder: Path, adapter: Path | None = None) -> None:
        config = json.loads((folder / "config.json").read_text())
        self.vocabulary_size: int = config["vocab_size"]
        self.context: int = config["max_position_embeddings"]
        self._layers: int = config["num_hidden_layers"]
        self._heads: int = config["num_attention_heads"]
        self._groups: int = config["num_key_value_heads"]
        self._size: int = config.get("head_dim") or config["hidden_size"] // self._heads
        self._theta: float = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
        self._epsilon: float = config["rms_norm_eps"]
        self._weights = {
            name: tensor.float()
            for file in folder.glob("*.safetensors")
            for name, tensor in load_file(file).items()
        }
        if config["tie_word_embeddings"]:
            self._weights["lm_head.weight"] = self._weights["model.embed_tokens.weight"]
        self._adapter = {} if adapter is None else _adapter(adapter)

    @torch.inference_mode()
    def logits(self, ids: list[int], *, adapted: bool) -> Tensor:
        """Logits [V] of the token after `ids`."""
        x = functional.embedding(torch.tensor(ids), self._weights["model.embed_tokens.weight"])
        angles = torch.arange(len(ids))[:, None] * self._theta ** (
            -torch.arange(0, self._size, 2) / self._size
        )
        for index in range(self._layers):
            layer = f"model.layers.{index}"
            x = x + self._attention(
                layer, self._norm(f"{layer}.input_layernorm", x), angles, adapted
            )
            x = x + self._mlp(layer, self._norm(f"{layer}.post_attention_layernorm", x), adapted)
        return self._linear("lm_head", self._norm("model.norm", x)[-1], adapted)

    def _attention(self, layer: str, x: Tensor, angles: Tensor, adapted: bool) -> Tensor:
        q, k, v = (
            self._linear(f"{layer}.self_attn.{name}_proj", x, adapted)
            .view(len(x), -1, self._size)
            .transpose(0, 1)
            for name in "qkv"
        )
        repeats = self._heads // self._groups
        k, v = (t.repeat_interleave(repeats, dim=0) for t in (_rotated(k, angles), v))
        scores = _rotated(q, angles) @ k.mT / self._size**0.5
        later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(later, -torch.inf).softmax(dim=-1) @ v
        joined = mixed.transpose(0, 1).reshape(len(x), -1)
        return self._linear(f"{layer}.self_attn.o_proj", joined, adapted)

    def _mlp(self, layer: str, x: Tensor, adapted: bool) -> Tensor:
        gate = functional.silu(self._linear(f"{layer}.mlp.gate_proj", x, adapted))
        up = self._linear(f"{layer}.mlp.up_proj", x, adapted)
        return self._linear(f"{layer}.mlp.down_proj", gate * up, adapted)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        scale = (x.pow(2).mean(dim=-1, keepdim=True) + self._epsilon).rsqrt()
        return x * scale * self._weights[f"{name}.weight"]

    def _linear(self, name: str, x: Tensor, adapted: bool) -> Tensor:
        y = x @ self._weights[f"{name}.weight"].mT
        if adapted and name in self._adapter:
            a, b, scaling = self._adapter[name]
            y = y + x @ a.mT @ b.mT * scaling
        return y


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotates the two halves of each head's vector [heads, tokens, size] by position."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _adapter(folder: Path) -> dict[str, tuple[Tensor, Tensor, float]]:
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["peft_type"], config["bias"]) == ("LORA", "none")
    tensors = load_file(folder / "adapter_model.safetensors")
    scaling = config["lora_alpha"] / config["r"]
    start, end = "base_model.model.", ".lora_A.weight"
    layers = [name.removeprefix(start).removesuffix(end) for name in tensors if name.endswith(end)]
    assert {layer.rpartition(".")[2] for layer in layers} == set(config["target_modules"])
    return {
        layer: (
            tensors[f"{start}{layer}{end}"].float(),
            tensors[f"{start}{layer}.lora_B.weight"].float(),
            scaling,
        )
        for layer in layers
    }
