"""One forward of a model with a cache, whatever its forward calls things."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from antiphon.services.generation.cache import can_join, new_cache

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel


class Decoder:
    """A causal language model as the decode loop sees it. B counts rows, V the vocabulary.

    Args:
        model: In evaluation mode.
        on_forward: Called after every forward.
    """

    def __init__(
        self, model: PreTrainedModel, on_forward: Callable[[], None] = lambda: None
    ) -> None:
        self._model = model
        self._on_forward = on_forward
        self.device = model.device
        takes = set(inspect.signature(model.forward).parameters)
        # transformers 5.24 renamed it.
        self._cache_keyword = "cache" if "cache" in takes else "past_key_values"
        self._keywords: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._takes_positions = "position_ids" in takes
        self.rows_can_join = can_join(self.new_cache())
        """Whether rows may join a batch under way."""

    def new_cache(self) -> DynamicCache:
        """An empty cache."""
        return new_cache(self._model.config)

    def __call__(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        """Logits [B, V] after the last of `ids` [B, L], whose keys and values join the cache.

        Args:
            ids: Token ids, int64.
            mask: [B, tokens of the cache and L]; False where a row has padding.
            positions: Of each of `ids` within its row, int64 [B, L].
            cache: Of the same rows.
        """
        keywords = {self._cache_keyword: cache, **self._keywords}
        if self._takes_positions:
            keywords["position_ids"] = positions
        output = self._model(input_ids=ids, attention_mask=mask, use_cache=True, **keywords)
        logits: Tensor = output.logits[:, -1].float()
        self._on_forward()
        return logits
