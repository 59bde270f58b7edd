"""The key-value cache of a batch, which grows in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_SPARE_TOKENS = 128


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """A layer's keys and values [rows, heads, tokens, size], with room for the tokens to come.

    `DynamicLayer` copies all of them at every step to append one token; here that happens when
    the room is used up, or when rows have been dropped.
    """

    keys: Tensor
    values: Tensor
    _layer_type = None  # Not to be taken for the library's own layer of any kind.

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self._room: tuple[Tensor, Tensor] | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Appends keys and values of new tokens and returns all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        old = self.get_seq_length()
        new = old + key_states.shape[-2]
        if self._room is None or self._room[0].shape[-2] < new:
            self._room = (
                _with_room(self.keys, key_states, old, new),
                _with_room(self.values, value_states, old, new),
            )
        keys, values = self._room
        keys[:, :, old:new] = key_states
        values[:, :, old:new] = value_states
        self.keys, self.values = keys[:, :, :new], values[:, :, :new]
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps the rows at `indices`, in that order, repeated where they are."""
        super().batch_select_indices(indices)
        self._room = None


def _with_room(held: Tensor, states: Tensor, old: int, new: int) -> Tensor:
    rows, heads, _, size = states.shape
    room = torch.empty(
        (rows, heads, new + _SPARE_TOKENS, size), dtype=states.dtype, device=states.device
    )
    if old:
        room[:, :, :old] = held
    return room


def new_cache(config: PreTrainedConfig) -> DynamicCache:
    """An empty cache for a model; layers with a sliding window are the library's own."""
    cache = DynamicCache(config=config)
    cache.layers = [
        RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache
