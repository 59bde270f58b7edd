"""State as files: a tree of plain values as JSON, its tensors beside it as safetensors.

A state is made of mappings with text keys, lists, tuples (which come back as lists), text, numbers,
booleans, None and tensors; no object is ever pickled. Numbers come back bit for bit, those that
JSON does not know (nan, inf) included. Long lists of numbers are kept as tensors and come back as
lists.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

LONG_LIST = 32
"""Numbers from which on a list of them is kept as a tensor."""
_TENSOR, _LIST, _FLOAT = "$tensor", "$list", "$float"
_MARKS = (_TENSOR, _LIST, _FLOAT)
_INT64 = range(-(2**63), 2**63)


class Component(Protocol):
    """A part of a run whose state a checkpoint holds.

    `load_state_dict` gets what `state_dict` gave, read back from a checkpoint: tensors on the CPU,
    tuples as lists. Tensors that `state_dict` gives may be live; they are written at once.
    """

    def state_dict(self) -> Mapping[str, Any]:
        """All that this part needs to go on as if nothing had happened."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        ...


@runtime_checkable
class StoredComponent(Protocol):
    """A part of a run whose state is too large for one process: it writes and reads it itself."""

    def write_state(self, folder: Path, name: str) -> None:
        """Write ``NAME.json`` and what it needs beside it; on disk when this returns."""
        ...

    def read_state(self, folder: Path, name: str) -> None:
        """Go on from what was written under this name, by one process or by many."""
        ...


Part = Component | StoredComponent


def save_part(folder: Path, name: str, part: Part) -> None:
    """Write the state of a part of a run."""
    if isinstance(part, StoredComponent):
        part.write_state(folder, name)
    else:
        write_state(folder, name, part.state_dict())


def load_part(folder: Path, name: str, part: Part) -> None:
    """Have a part of a run go on from its state."""
    if isinstance(part, StoredComponent):
        part.read_state(folder, name)
    else:
        part.load_state_dict(read_state(folder, name))


def write_state(folder: Path, name: str, state: Mapping[str, Any]) -> None:
    """Write a state as ``NAME.json`` and, where it holds tensors, ``NAME.safetensors``.

    Both are on disk when this returns.

    Raises:
        TypeError: The state holds something else than plain values and tensors; names where.
    """
    tree, tensors = packed(state, name)
    write_tree(folder, name, tree)
    if tensors:
        file_name = folder / f"{name}.safetensors"
        save_file(_plain(tensors), file_name)
        flush(file_name)


def write_tree(folder: Path, name: str, tree: Any) -> None:
    """Write the JSON of a state, on disk when this returns."""
    with (folder / f"{name}.json").open("w", encoding="utf-8") as file:
        json.dump(tree, file, ensure_ascii=False, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())


def read_state(folder: Path, name: str) -> dict[str, Any]:
    """Read back what `write_state` wrote, or the ranks of a sharded learner; tensors on the CPU."""
    file, parts = folder / f"{name}.safetensors", folder / name
    tensors: Mapping[str, Tensor] = {}
    if file.is_file():
        tensors = load_file(file)
    elif parts.is_dir():
        from antiphon.learner.distributed.state import load_whole

        tensors = load_whole(parts)
    state: dict[str, Any] = unpacked(read_tree(folder, name), tensors)
    return state


def read_tree(folder: Path, name: str) -> Any:
    """The JSON of a state."""
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def packed(state: Mapping[str, Any], name: str) -> tuple[Any, dict[str, Tensor]]:
    """A state as JSON, and its tensors by the path that leads to them, ``NAME/KEY/KEY``.

    Raises:
        TypeError: The state holds something else than plain values and tensors; names where.
    """
    tensors: dict[str, Tensor] = {}
    return _packed(state, name, tensors), tensors


def unpacked(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `packed` took apart."""
    return _unpacked(tree, tensors)


def flush(path: Path) -> None:
    """Have a file, or the entries of a folder, on disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _packed(value: Any, where: str, tensors: dict[str, Tensor]) -> Any:
    """`value` as JSON; its tensors go to `tensors` under the path that leads to them."""
    if isinstance(value, Tensor):
        return {_TENSOR: _put(tensors, where, value)}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key in _MARKS:
                raise TypeError(f"{where}: got the key {key!r}, wanted text other than {_MARKS}")
        return {key: _packed(inner, f"{where}/{key}", tensors) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        if (numbers := _as_tensor(value)) is not None:
            return {_LIST: _put(tensors, where, numbers)}
        return [_packed(inner, f"{where}/{i}", tensors) for i, inner in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(float(value))}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(
        f"{where}: got {type(value).__name__}, wanted a tensor, number, text, None, list or mapping"
    )


def _unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpacked(inner, tensors) for inner in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    if _LIST in value:
        return tensors[value[_LIST]].tolist()
    if _FLOAT in value:
        return float(value[_FLOAT])
    return {key: _unpacked(inner, tensors) for key, inner in value.items()}


def _as_tensor(values: Sequence[Any]) -> Tensor | None:
    """A long list of floats or of integers as a tensor, None for every other list."""
    if len(values) < LONG_LIST:
        return None
    if all(type(value) is float for value in values):
        return torch.tensor(values, dtype=torch.float64)
    if all(type(value) is int and value in _INT64 for value in values):
        return torch.tensor(values, dtype=torch.int64)
    return None


def _put(tensors: dict[str, Tensor], key: str, tensor: Tensor) -> str:
    if key in tensors:
        raise TypeError(f"{key}: two tensors of this state have this path")
    tensors[key] = tensor
    return key


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, contiguous, each in memory that it shares with no other."""
    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    for key, tensor in tensors.items():
        moved = tensor.detach().to("cpu").contiguous()
        memory = moved.untyped_storage()
        if memory.data_ptr() in seen or memory.nbytes() != moved.nbytes:
            moved = moved.clone()
        seen.add(memory.data_ptr())
        plain[key] = moved
    return plain
