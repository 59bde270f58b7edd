"""The cache that grows in place, against the library's own."""

from __future__ import annotations

import torch
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from antiphon.services.generation.cache import RoomyLayer, new_cache


def states(rows: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 2, tokens, 4), torch.randn(rows, 2, tokens, 4)


def test_it_holds_what_the_librarys_layer_holds_through_growth_and_dropped_rows() -> None:
    torch.manual_seed(0)
    roomy, plain = RoomyLayer(), DynamicLayer()
    rows = 3
    for step in range(400):
        keys, values = states(rows, 7 if step == 0 else 1)
        for got, wanted in zip(roomy.update(keys, values), plain.update(keys, values), strict=True):
            assert torch.equal(got, wanted)
        assert roomy.get_seq_length() == plain.get_seq_length()
        assert roomy.get_mask_sizes(1) == plain.get_mask_sizes(1)
        if step in (0, 5, 200, 201):
            kept = torch.tensor([0, 2, 2, 1, 0]) if step == 0 else torch.arange(1, rows)
            roomy.batch_select_indices(kept)
            plain.batch_select_indices(kept)
            rows = len(kept)


def test_a_step_appends_without_copying_what_is_there() -> None:
    layer = RoomyLayer()
    layer.update(*states(2, 5))
    layer.update(*states(2, 1))
    place = layer.keys.data_ptr()
    for _ in range(100):
        layer.update(*states(2, 1))
    assert layer.keys.data_ptr() == place


def test_only_layers_without_a_sliding_window_are_replaced() -> None:
    cache = new_cache(LlamaConfig(num_hidden_layers=3))
    assert [type(layer) for layer in cache.layers] == [RoomyLayer] * 3
    mixed = new_cache(
        Gemma3TextConfig(num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"])
    )
    assert [type(layer) for layer in mixed.layers] == [DynamicSlidingWindowLayer, RoomyLayer]
