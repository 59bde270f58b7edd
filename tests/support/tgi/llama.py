"""A Llama's forward written out in numpy, so that a server of one starts in no time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[np.float32]


class Llama:
    """Logits of one sequence, in float32, of a folder whose weights are float32.

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
            name: tensor
            for file in folder.glob("*.safetensors")
            for name, tensor in load_file(file).items()
        }
        if config["tie_word_embeddings"]:
            self._weights["lm_head.weight"] = self._weights["model.embed_tokens.weight"]
        self._adapter = {} if adapter is None else _adapter(adapter)

    def logits(self, ids: list[int], *, adapted: bool) -> Array:
        """Logits [V] of the token after `ids`."""
        x = self._weights["model.embed_tokens.weight"][ids]
        frequencies = self._theta ** (-np.arange(0, self._size, 2, dtype=np.float32) / self._size)
        angles = np.arange(len(ids), dtype=np.float32)[:, None] * frequencies
        for index in range(self._layers):
            layer = f"model.layers.{index}"
            y = self._norm(f"{layer}.input_layernorm", x)
            x = x + self._attention(layer, y, angles, adapted)
            y = self._norm(f"{layer}.post_attention_layernorm", x)
            x = x + self._mlp(layer, y, adapted)
        return self._linear("lm_head", self._norm("model.norm", x)[-1], adapted)

    def _attention(self, layer: str, x: Array, angles: Array, adapted: bool) -> Array:
        q, k, v = (
            self._linear(f"{layer}.self_attn.{name}_proj", x, adapted)
            .reshape(len(x), -1, self._size)
            .swapaxes(0, 1)
            for name in "qkv"
        )
        repeats = self._heads // self._groups
        k, v = (t.repeat(repeats, axis=0) for t in (_rotated(k, angles), v))
        scores = _rotated(q, angles) @ k.swapaxes(1, 2) / np.float32(self._size**0.5)
        scores[:, np.triu(np.ones((len(x), len(x)), dtype=bool), 1)] = -np.inf
        mixed = np.exp(log_softmax(scores)) @ v
        joined = mixed.swapaxes(0, 1).reshape(len(x), -1)
        return self._linear(f"{layer}.self_attn.o_proj", joined, adapted)

    def _mlp(self, layer: str, x: Array, adapted: bool) -> Array:
        gate = self._linear(f"{layer}.mlp.gate_proj", x, adapted)
        up = self._linear(f"{layer}.mlp.up_proj", x, adapted)
        return self._linear(f"{layer}.mlp.down_proj", gate / (1 + np.exp(-gate)) * up, adapted)

    def _norm(self, name: str, x: Array) -> Array:
        scale = 1 / np.sqrt((x**2).mean(axis=-1, keepdims=True) + np.float32(self._epsilon))
        return x * scale * self._weights[f"{name}.weight"]

    def _linear(self, name: str, x: Array, adapted: bool) -> Array:
        y = x @ self._weights[f"{name}.weight"].T
        if adapted and name in self._adapter:
            a, b, scaling = self._adapter[name]
            y = y + x @ a.T @ b.T * np.float32(scaling)
        return y


def log_softmax(x: Array) -> Array:
    """Logarithm of the softmax over the last dimension."""
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def _rotated(x: Array, angles: Array) -> Array:
    """Rotates the two halves of each head's vector [heads, tokens, size] by position."""
    first, second = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _adapter(folder: Path) -> dict[str, tuple[Array, Array, float]]:
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["peft_type"], config["bias"]) == ("LORA", "none")
    tensors = load_file(folder / "adapter_model.safetensors")
    scaling = config["lora_alpha"] / config["r"]
    start, end = "base_model.model.", ".lora_A.weight"
    layers = [name.removeprefix(start).removesuffix(end) for name in tensors if name.endswith(end)]
    assert {layer.rpartition(".")[2] for layer in layers} == set(config["target_modules"])
    return {
        layer: (
            tensors[f"{start}{layer}{end}"],
            tensors[f"{start}{layer}.lora_B.weight"],
            scaling,
        )
        for layer in layers
    }
