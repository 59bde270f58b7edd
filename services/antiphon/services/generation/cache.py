"""The key-value cache of a batch: it grows in place, and rows leave and join it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_SPARE_TOKENS = 128


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """A layer's keys and values [rows, heads, tokens, size], a window of a larger room.

    `DynamicLayer` copies all of them at every step to append one token, and again when a row is
    dropped. Here tokens are appended in place until the room is used up, and rows and tokens that
    are dropped at the edges cost nothing.
    """

    keys: Tensor
    values: Tensor
    _layer_type = None  # Not to be taken for the library's own layer of any kind.

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self._room: tuple[Tensor, Tensor] | None = None
        self._first = 0
        """Column of the room where the window begins."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Appends keys and values of new tokens and returns all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        old = self.get_seq_length()
        if not old:
            self._room = None
            self.keys, self.values = key_states, value_states
            return self.keys, self.values
        rows, new = key_states.shape[0], old + key_states.shape[-2]
        self._make_room(rows, new)
        self._look(rows, new)
        self.keys[:, :, old:] = key_states
        self.values[:, :, old:] = value_states
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps the rows at `indices`, in that order, repeated where they are."""
        super().batch_select_indices(indices)
        self._room = None

    def reorder_rows(self, order: Sequence[int]) -> None:
        """Row i becomes what row `order[i]` was; only rows that move are copied.

        Args:
            order: Distinct; a row that moves comes from behind the last place.
        """
        tokens = self.get_seq_length()
        if not tokens:
            return
        moved = [(source, place) for place, source in enumerate(order) if source != place]
        if moved:
            sources, places = torch.tensor(moved, device=self.keys.device).unbind(-1)
            self.keys[places] = self.keys[sources]
            self.values[places] = self.values[sources]
        self.keys, self.values = self.keys[: len(order)], self.values[: len(order)]

    def drop_first(self, tokens: int) -> None:
        """Forgets the first tokens of all rows."""
        if self._room is not None:
            self._first += tokens
        self.keys, self.values = self.keys[:, :, tokens:], self.values[:, :, tokens:]

    def join(self, other: DynamicLayer, rows: Tensor, tokens: int) -> None:
        """Appends `rows` of another layer, aligned at the last token.

        Args:
            other: Where it holds more than `tokens` tokens, the first are left out.
            rows: Their indices, repeated where a row is wanted several times.
            tokens: The length here; an empty layer gets it.
        """
        if not self.is_initialized:
            self.lazy_initialization(other.keys, other.values)
        held = self.keys.shape[0] if self.get_seq_length() else 0
        if not held:
            self._room, self._first = None, 0
            self.keys, self.values = other.keys[:0, :, :0], other.values[:0, :, :0]
        self._make_room(held + len(rows), tokens)
        self._look(held + len(rows), tokens)
        taken = min(tokens, other.get_seq_length())
        for mine, theirs in ((self.keys, other.keys), (self.values, other.values)):
            # Masked places are multiplied by zero, which must not meet a NaN.
            mine[held:, :, : tokens - taken] = 0
            mine[held:, :, tokens - taken :] = theirs[rows, :, theirs.shape[-2] - taken :]

    def _look(self, rows: int, tokens: int) -> None:
        assert self._room is not None
        keys, values = self._room
        end = self._first + tokens
        self.keys, self.values = (
            keys[:rows, :, self._first : end],
            values[:rows, :, self._first : end],
        )

    def _make_room(self, rows: int, tokens: int) -> None:
        """Sees that the room holds so many rows and tokens from the window's begin on."""
        if self._room is not None:
            held_rows, _, columns, _ = self._room[0].shape
            if held_rows >= rows and columns - self._first >= tokens:
                return
            rows = max(rows, held_rows)
        self._room = _with_room(self.keys, rows, tokens), _with_room(self.values, rows, tokens)
        self._first = 0


def _with_room(held: Tensor, rows: int, tokens: int) -> Tensor:
    held_rows, heads, length, size = held.shape
    room = held.new_empty((rows, heads, tokens + _SPARE_TOKENS, size))
    room[:held_rows, :, :length] = held
    return room


def new_cache(config: PreTrainedConfig) -> DynamicCache:
    """An empty cache for a model; layers with a sliding window are the library's own."""
    cache = DynamicCache(config=config)
    cache.layers = [
        RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


def can_join(cache: DynamicCache) -> bool:
    """Whether rows can join a cache under way: every layer must have room."""
    return bool(cache.layers) and all(isinstance(layer, RoomyLayer) for layer in cache.layers)


def reorder_rows(cache: DynamicCache, order: Sequence[int], device: torch.device) -> None:
    """Row i of a cache becomes what row `order[i]` was; see `RoomyLayer.reorder_rows`."""
    for layer in cache.layers:
        if isinstance(layer, RoomyLayer):
            layer.reorder_rows(order)
        else:
            layer.batch_select_indices(torch.tensor(order, dtype=torch.int64, device=device))
