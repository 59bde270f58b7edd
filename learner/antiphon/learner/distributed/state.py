"""Checkpoints of a sharded policy: every rank writes its own part, and any number of ranks reads.

    policy_0.json                    the tree of the state, as `checkpoints.state_files` writes it
    policy_0/shard-00001-….safetensors   the tensors' rows of one rank, and where they belong

Written and read by torch.distributed.checkpoint in the safetensors format: nothing is pickled to
disk, and a learner of one process reads it as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.distributed.checkpoint.state_dict_saver import save as save_parts
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


def save(folder: Path, tensors: Mapping[str, Tensor], group: ProcessGroup) -> None:
    """Write this rank's rows of parted tensors; every rank of the group calls this.

    Raises:
        CheckpointException: A rank could not write; on every rank.
    """
    with _quiet():
        save_parts(
            dict(tensors),
            storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True),
            process_group=group,
        )


def load(
    folder: Path, name: str, parameters: Mapping[str, Tensor], mesh: DeviceMesh
) -> dict[str, Tensor]:
    """This rank's rows of a state's tensors, and those that are not parted, by name.

    Args:
        folder: That of the checkpoint.
        name: The component's, as in `tensor_folder`.
        parameters: The model's; what has a parameter's name and shape is parted as it is.
        mesh: The ranks.
    """
    reader = HuggingFaceStorageReader(str(tensor_folder(folder, name)))
    tensors = {
        key: _room(key, meta, parameters)
        for key, meta in _metadata(reader).items()
        if key.startswith(f"{name}/")
    }
    with _quiet():
        load_parts(tensors, storage_reader=reader, process_group=mesh.get_group())
    return tensors


def load_whole(folder: Path) -> dict[str, Tensor]:
    """All tensors that `save` wrote to a folder, in one process."""
    reader = HuggingFaceStorageReader(str(folder))
    tensors: dict[str, Tensor] = {
        key: torch.empty(meta.size, dtype=meta.properties.dtype)
        for key, meta in _metadata(reader).items()
    }
    with _quiet():
        load_parts(tensors, storage_reader=reader, no_dist=True)
    return tensors


def tensor_folder(folder: Path, name: str) -> Path:
    """Where a component's tensors are: a folder of their own, or that of the whole checkpoint."""
    own = folder / name
    return own if own.is_dir() else folder


def _metadata(reader: HuggingFaceStorageReader) -> dict[str, TensorStorageMetadata]:
    found = reader.read_metadata().state_dict_metadata
    return {key: meta for key, meta in found.items() if isinstance(meta, TensorStorageMetadata)}


def _room(key: str, meta: TensorStorageMetadata, parameters: Mapping[str, Tensor]) -> Tensor:
    """Room for a tensor of a state, `NAME/masters/PARAMETER` or `NAME/moments/PARAMETER/KEY`."""
    parts = key.split("/")
    parameter = parameters.get(parts[2]) if len(parts) > 2 else None
    if isinstance(parameter, DTensor) and parameter.shape == meta.size:
        held = torch.empty_like(parameter.to_local(), dtype=meta.properties.dtype)
        return DTensor.from_local(
            held,
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
    return torch.empty(meta.size, dtype=meta.properties.dtype)


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch warns of its own interfaces."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\.distributed")
        yield
