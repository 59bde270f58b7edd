"""Versions of a model as folders that other programs load.

A folder is written beside its place and renamed into it, so it is whole or not there. It holds
config and tokenizer as the source has them, the weights as safetensors, and generation settings
with every end token and nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import save_file
from torch import Tensor

from antiphon.clients.types import LoadedWeights
from antiphon.services.common.lora import SCALING, A
from antiphon.services.generation.engines.served_model import ServedModel, architecture

_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - only where it is there
_ADAPTER = "adapter"
_PARTIAL = ".partial-"
_MODEL_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
_TOKENIZER_FILES = ("*token*", "vocab*", "merges*", "*.model", "*.jinja")


class ModelFolders:
    """Writes versions into a folder of their own.

    Args:
        root: Made where it is missing. What an earlier process left half written goes. None makes a
            temporary folder, which `close` removes.
        served: The model whose versions these are.
        untied: Write a head that shares the embedding's weights as a tensor of its own, for
            programs that would not update it otherwise.
        in_memory: A temporary folder is one in memory, where there is such a place.
    """

    def __init__(
        self,
        root: Path | None,
        served: ServedModel,
        *,
        untied: bool = False,
        in_memory: bool = False,
    ) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if root is None:
            memory = str(_IN_MEMORY) if in_memory and _IN_MEMORY.is_dir() else None
            self._temporary = tempfile.TemporaryDirectory(prefix="antiphon-weights-", dir=memory)
            root = Path(self._temporary.name)
        self._root = root
        self._served = served
        self._model = architecture(served.source, tied=False) if untied else served.model
        self._untied = served.untied_head(self._model) if untied else None
        root.mkdir(parents=True, exist_ok=True)
        for left in root.glob(f"{_PARTIAL}*"):
            shutil.rmtree(left)

    def write(
        self, loaded: LoadedWeights, own: Mapping[str, Tensor], adapter: Mapping[str, Tensor]
    ) -> Path:
        """Writes a version and returns its folder; its adapter, if any, is in `adapter_of` it.

        Args:
            loaded: What it is.
            own: All of the model's own tensors.
            adapter: Those of its adapter, as on the wire; none for none.
        """
        folder, partial = self._begin(loaded)
        # Names as the library saves them, which need not be those in memory.
        tensors = dict(own)
        if self._untied is not None:
            tensors[self._untied.head] = own[self._untied.embedding].clone()
        self._model.save_pretrained(partial, state_dict=tensors)
        self._copy_small_files(partial)
        dtype = next(iter(own.values())).dtype
        _name_tokenizer_for_all(partial / "tokenizer_config.json")
        config = self._config(json.loads((partial / "config.json").read_text()), dtype)
        _write_json(partial / "config.json", config)
        ends = list(self._served.end_ids)
        _write_json(partial / "generation_config.json", {"eos_token_id": ends})
        if adapter:
            _write_adapter(partial / _ADAPTER, adapter, str(folder))
        return self._finish(folder, partial)

    def write_adapter(
        self, base: Path, loaded: LoadedWeights, adapter: Mapping[str, Tensor]
    ) -> Path:
        """Writes a version that shares the model's own weights with that in `base`."""
        folder, partial = self._begin(loaded)
        for file in base.iterdir():
            if file.is_file():
                (partial / file.name).hardlink_to(file)
        _write_adapter(partial / _ADAPTER, adapter, str(folder))
        return self._finish(folder, partial)

    def close(self) -> None:
        """Removes what would outlive the process otherwise."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def keep_only(self, *folders: Path | None) -> None:
        """Removes the versions that nobody serves."""
        for path in self._root.iterdir():
            if path not in folders:
                shutil.rmtree(path, ignore_errors=True)

    def _begin(self, loaded: LoadedWeights) -> tuple[Path, Path]:
        """Where a version's folder will be, and the empty one that becomes it."""
        name = f"version-{loaded.incarnation}-{loaded.version}-{loaded.digest.hex()[:12]}"
        partial = self._root / f"{_PARTIAL}{name}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        return self._root / name, partial

    def _finish(self, folder: Path, partial: Path) -> Path:
        _flush(partial)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        _flush_directory(self._root)
        return folder

    def _copy_small_files(self, target: Path) -> None:
        """Config and tokenizer as they are: saved anew, older programs may not read them."""
        served = self._served
        _copy(served.source, _MODEL_FILES, target)
        if served.tokenizer_source != served.source:
            _copy(served.tokenizer_source, _TOKENIZER_FILES, target)

    def _config(self, config: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
        # Both names: transformers renamed it in version 5, and took rope_theta into a mapping.
        if self._untied is not None:
            config["tie_word_embeddings"] = False
        config["dtype"] = config["torch_dtype"] = str(dtype).removeprefix("torch.")
        rope = config.get("rope_parameters") or {}
        if "rope_theta" in rope:
            config.setdefault("rope_theta", rope["rope_theta"])
        return config


def _copy(source: str, patterns: Sequence[str], target: Path) -> None:
    """Copies the files of a folder or hub name that match."""
    folder = Path(source)
    if not folder.is_dir():
        folder = Path(snapshot_download(source, allow_patterns=list(patterns)))
    for pattern in patterns:
        for file in folder.glob(pattern):
            if file.is_file() and not file.name.endswith((".index.json", ".safetensors")):
                shutil.copyfile(file, target / file.name)


def adapter_of(folder: Path) -> Path | None:
    """The folder of a version's adapter, None where it has none."""
    path = folder / _ADAPTER
    return path if path.is_dir() else None


def _write_adapter(folder: Path, tensors: Mapping[str, Tensor], base: str) -> None:
    """An adapter as peft saves one; all of its layers have one rank and one scaling."""
    folder.mkdir()
    rank = next(t.shape[0] for name, t in tensors.items() if name.endswith(A))
    scaling = next(float(t) for name, t in tensors.items() if name.endswith(SCALING))
    layers = {name.removesuffix(A).rpartition(".")[2] for name in tensors if name.endswith(A)}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": scaling * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": sorted(layers),
        "inference_mode": True,
    }
    _write_json(folder / "adapter_config.json", config)
    weights = {
        f"base_model.model.{name}": tensor.contiguous()
        for name, tensor in tensors.items()
        if not name.endswith(SCALING)
    }
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _name_tokenizer_for_all(file: Path) -> None:
    """Version 5 of transformers writes a class name that earlier ones do not know."""
    if file.is_file():
        config = json.loads(file.read_text())
        if config.get("tokenizer_class") == "TokenizersBackend":
            _write_json(file, {**config, "tokenizer_class": "PreTrainedTokenizerFast"})


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        else:
            _flush_directory(path)
    _flush_directory(folder)


def _flush_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
