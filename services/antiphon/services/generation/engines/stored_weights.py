"""The weights that a program serves, as folders: what pushes make of one folder is the next one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from antiphon.clients.digest import weights_digest
from antiphon.clients.types import LoadedWeights, PushKind, TensorDtype, TensorSpec
from antiphon.services.common.lora import is_adapter_tensor
from antiphon.services.common.models import load_model
from antiphon.services.common.tensors import (
    TORCH_DTYPES,
    from_bytes,
    tensor_specs,
    wire_tensors,
)
from antiphon.services.generation.engine import ChangedTensor, PushedTensor
from antiphon.services.generation.engines.model_folders import ModelFolders


class StoredWeights:
    """The version that is served and its folder.

    Args:
        folders: Where versions are written.
    """

    def __init__(self, folders: ModelFolders) -> None:
        self.folders = folders
        self.folder: Path | None = None
        self.base: tuple[TensorSpec, ...] = ()
        """The model's own tensors, without an adapter's; empty for none."""
        self._named_alike = False

    def start(self, source: str, dtype: TensorDtype, *, weights: bool = True) -> LoadedWeights:
        """Writes the weights of `source`, rounded to `dtype`, as the version to start with.

        Args:
            source: Folder or hub name.
            dtype: Number format.
            weights: False writes zeros, which count as no weights.
        """
        own = wire_tensors(load_model(source, dtype=TORCH_DTYPES[dtype], weights=weights))
        specs = tensor_specs(own, dtype)
        loaded = LoadedWeights(digest=weights_digest(specs) if weights else b"")
        self.serves(self.folders.write(loaded, own, {}), specs)
        self._named_alike = set(own) <= self._names()
        return loaded

    # Files hold every tensor in the number format that it came in.
    delta_dtypes = frozenset(TensorDtype)

    @property
    def push_kinds(self) -> frozenset[PushKind]:
        """Kinds of push that can be taken; deltas where files name tensors as the wire does."""
        kinds = {PushKind.FULL, PushKind.ADAPTER}
        return frozenset({*kinds, PushKind.DELTA} if self._named_alike else kinds)

    def serves(self, folder: Path, specs: Sequence[TensorSpec]) -> None:
        """Notes that a folder is served now; the model's own tensors are those of `specs`, if any.

        Other folders are removed.
        """
        self.folder = folder
        if own := tuple(spec for spec in specs if not is_adapter_tensor(spec.name)):
            self.base = own
        self.folders.keep_only(folder)

    def write(self, pushed: Sequence[PushedTensor], loaded: LoadedWeights) -> Path:
        """Writes what whole tensors come to: all of the model's own, an adapter's, or both."""
        own: dict[str, Tensor] = {}
        adapter: dict[str, Tensor] = {}
        for one in pushed:
            kind = adapter if is_adapter_tensor(one.spec.name) else own
            kind[one.spec.name] = from_bytes(one.data, one.spec.dtype, one.spec.shape)
        if own:
            return self.folders.write(loaded, own, adapter)
        assert self.folder is not None  # An adapter is let in only where its base is loaded.
        return self.folders.write_adapter(self.folder, loaded, adapter)

    def write_changes(self, changes: Sequence[ChangedTensor], loaded: LoadedWeights) -> Path:
        """Writes what a delta comes to."""
        own = self.own_tensors()
        for change in changes:
            own[change.spec.name].view(-1)[change.positions] = change.values
        return self.folders.write(loaded, own, {})

    def own_tensors(self) -> dict[str, Tensor]:
        """The model's own tensors as they are served, read from their folder."""
        names = {spec.name for spec in self.base}
        own: dict[str, Tensor] = {}
        for file in self._files():
            with safe_open(file, framework="pt") as tensors:
                for name in names.intersection(tensors.keys()):
                    own[name] = tensors.get_tensor(name).clone()
        return own

    def _names(self) -> set[str]:
        names: set[str] = set()
        for file in self._files():
            with safe_open(file, framework="pt") as tensors:
                names.update(tensors.keys())
        return names

    def _files(self) -> Iterable[Path]:
        assert self.folder is not None
        return self.folder.glob("*.safetensors")
