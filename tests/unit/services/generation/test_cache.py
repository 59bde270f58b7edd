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


def test_rows_move_to_free_places_and_others_join_at_the_last_token() -> None:
    torch.manual_seed(0)
    layer, other = RoomyLayer(), RoomyLayer()
    keys, values = states(4, 6)
    layer.join(layer_of(keys, values), torch.tensor([0, 1, 2, 3]), 6)
    step = states(4, 1)
    keys, values = (torch.cat(pair, -2) for pair in zip((keys, values), step, strict=True))
    assert all(torch.equal(*p) for p in zip(layer.update(*step), (keys, values), strict=True))
    layer.reorder_rows([0, 3, 2])
    assert torch.equal(layer.keys, keys[[0, 3, 2]])
    layer.reorder_rows([2, 1])
    layer.drop_first(2)
    assert torch.equal(layer.values, values[[2, 3], :, 2:])
    joining = states(2, 3)
    other.update(*joining)
    layer.join(other, torch.tensor([1, 0, 1]), 5)
    assert torch.equal(layer.keys[:2], keys[[2, 3], :, 2:])
    assert torch.equal(layer.keys[2:, :, 2:], joining[0][[1, 0, 1]])
    assert torch.equal(layer.values[2:, :, 2:], joining[1][[1, 0, 1]])
    assert not layer.keys[2:, :, :2].any()
    assert layer.get_seq_length() == 5
    grown = states(5, 200)
    assert torch.equal(layer.update(*grown)[0][:, :, 5:], grown[0])
    assert torch.equal(layer.keys[:2, :, :5], keys[[2, 3], :, 2:])


def layer_of(keys: torch.Tensor, values: torch.Tensor) -> RoomyLayer:
    layer = RoomyLayer()
    layer.update(keys, values)
    return layer
