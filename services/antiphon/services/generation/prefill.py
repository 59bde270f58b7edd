"""Prefill: each distinct prefix once, with little padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from antiphon.services.generation.decoder import Decoder

if TYPE_CHECKING:
    from transformers import DynamicCache

_PADDING = 64
_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Prefix:
    """A computed prefix: its place in the `cache` of its group and the logits [V] after it."""

    cache: DynamicCache
    place: int
    logits: Tensor


def groups(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of prefixes to compute together, the longest first.

    A group is closed once another prefix would cost more in padding than a forward of its own,
    about what `_PADDING` tokens cost, or where it would hold more than `_TOKENS` tokens.
    """
    parts: list[list[int]] = []
    padding = width = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        padding += width - lengths[index]
        full = parts and (len(parts[-1]) + 1) * width > _TOKENS
        if not parts or padding > _PADDING or full:
            parts.append([])
            padding, width = 0, lengths[index]
        parts[-1].append(index)
    return parts


def prefill(decoder: Decoder, prefixes: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Prefix]:
    """Computes distinct prefixes, in one group where rows cannot join a batch later."""
    parts = groups([len(prefix) for prefix in prefixes])
    if not decoder.rows_can_join:
        parts = [list(range(len(prefixes)))]
    computed: dict[tuple[int, ...], Prefix] = {}
    for part in parts:
        computed |= _group(decoder, [prefixes[index] for index in part])
    return computed


def _group(decoder: Decoder, prefixes: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Prefix]:
    length = max(map(len, prefixes))
    # Padded places are masked, so which id fills them does not matter.
    ids = torch.tensor([[0] * (length - len(p)) + list(p) for p in prefixes])
    starts = torch.tensor([[length - len(p)] for p in prefixes])
    positions = torch.arange(length) - starts
    mask, positions = positions >= 0, positions.clamp(min=0)
    device, cache = decoder.device, decoder.new_cache()
    logits = decoder(ids.to(device), mask.to(device), positions.to(device), cache)
    return {prefix: Prefix(cache, place, logits[place]) for place, prefix in enumerate(prefixes)}
