"""The decode loop: rows of one batch from their prompts to their ends."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from antiphon.clients.types import FinishReason, SamplingParameters, WeightsSpan
from antiphon.services.common.sampling import sample, seeds_tensor, uniform
from antiphon.services.generation.cache import new_cache

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(slots=True)
class Row:
    """One completion while it grows. The lists are aligned with `token_ids`."""

    prompt_index: int
    sample_index: int
    prompt: tuple[int, ...]
    seed: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    kept_sizes: list[int] = field(default_factory=list)
    full_logprobs: list[float] = field(default_factory=list)
    full_logprobs_temperature_1: list[float] = field(default_factory=list)
    spans: list[WeightsSpan] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def begin_span(self, weights_version: int) -> None:
        """Notes that the next token is sampled under `weights_version`."""
        start = len(self.token_ids)
        if self.spans and self.spans[-1].start == start:
            self.spans.pop()
        if not self.spans or self.spans[-1].weights_version != weights_version:
            self.spans.append(WeightsSpan(start, weights_version))


class Batch:
    """Rows that are decoded together. B counts those that have not ended, V the vocabulary.

    Each distinct prefix is prefilled once and its cache repeated over its rows. A row that ends
    leaves the cache, so it stops costing. Nothing is kept beyond the batch.

    Args:
        model: In evaluation mode.
        rows: At least one.
        sampling: Common to all rows.
        end_ids: A row ends with any of them.
        full: Also note log-probabilities under the full softmax.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        rows: Sequence[Row],
        sampling: SamplingParameters,
        end_ids: frozenset[int],
        *,
        full: bool,
    ) -> None:
        self._model = model
        self._device = model.device
        self._takes = set(inspect.signature(model.forward).parameters)
        # transformers 5.24 renamed it.
        self._cache_keyword = "cache" if "cache" in self._takes else "past_key_values"
        self.rows = list(rows)
        self._sampling = sampling
        self._end_ids = end_ids
        self._full = full

    @property
    def cache_tokens(self) -> int:
        """Places of the key-value cache, padding included."""
        return self._mask.numel() if self.rows else 0

    @torch.inference_mode()
    def prefill(self, weights_version: int) -> None:
        """Computes the cache of every row's prompt and tokens so far under the present weights."""
        for row in self.rows:
            row.begin_span(weights_version)
        prefixes = [row.prompt + tuple(row.token_ids) for row in self.rows]
        distinct = list(dict.fromkeys(prefixes))
        length = max(map(len, distinct))
        # Padded places are masked, so which id fills them does not matter.
        ids = torch.tensor([[0] * (length - len(p)) + list(p) for p in distinct])
        mask = torch.tensor([[0] * (length - len(p)) + [1] * len(p) for p in distinct])
        ids, mask = ids.to(self._device), mask.to(self._device)
        self._cache = new_cache(self._model.config)
        logits = self._forward(ids, mask, (mask.cumsum(-1) - 1).clamp(min=0))
        place = {prefix: i for i, prefix in enumerate(distinct)}
        spread = torch.tensor([place[prefix] for prefix in prefixes], device=self._device)
        if spread.tolist() != list(range(len(distinct))):
            self._cache.batch_select_indices(spread)
        self._logits = logits[spread]
        self._mask = mask[spread]
        self._lengths = self._mask.sum(-1)
        self._seeds = seeds_tensor([row.seed for row in self.rows]).to(self._device)

    @torch.inference_mode()
    def sample(self) -> list[Row]:
        """Samples one token for every row and returns the rows that ended with it.

        The others need `advance` or `prefill` before the next token.

        Raises:
            FloatingPointError: The model's logits are not finite.
        """
        position = len(self.rows[0].token_ids)
        uniforms = uniform(self._seeds, torch.full_like(self._seeds, position))
        drawn = sample(self._logits, self._sampling, uniforms, full=self._full)
        if not bool(torch.isfinite(drawn.logprobs).all()):
            raise FloatingPointError("the model's logits are not finite; push sound weights")
        for row, token, logprob, kept in zip(
            self.rows,
            drawn.ids.tolist(),
            drawn.logprobs.tolist(),
            drawn.kept_sizes.tolist(),
            strict=True,
        ):
            row.token_ids.append(token)
            row.logprobs.append(logprob)
            row.kept_sizes.append(kept)
            if token in self._end_ids:
                row.finish_reason = FinishReason.END_TOKEN
            elif len(row.token_ids) == self._sampling.max_new_tokens:
                row.finish_reason = FinishReason.LENGTH
        self._note_full(drawn.full_logprobs, "full_logprobs")
        self._note_full(drawn.full_logprobs_temperature_1, "full_logprobs_temperature_1")
        ended = [row for row in self.rows if row.finish_reason is not None]
        self._sampled = drawn.ids
        if ended:
            alive = [i for i, row in enumerate(self.rows) if row.finish_reason is None]
            self._keep(torch.tensor(alive, dtype=torch.int64, device=self._device))
        return ended

    @torch.inference_mode()
    def advance(self) -> None:
        """Feeds the sampled tokens to the model, which gives the logits of the next ones."""
        grown = torch.ones_like(self._mask[:, :1])
        self._mask = torch.cat([self._mask, grown], dim=-1)
        self._logits = self._forward(self._sampled[:, None], self._mask, self._lengths[:, None])
        self._lengths = self._lengths + 1

    def _note_full(self, values: Tensor | None, name: str) -> None:
        if values is not None:
            for row, value in zip(self.rows, values.tolist(), strict=True):
                getattr(row, name).append(value)

    def _keep(self, alive: Tensor) -> None:
        self.rows = [self.rows[i] for i in alive.tolist()]
        if self.rows:
            self._cache.batch_select_indices(alive)
            self._mask = self._mask[alive]
            self._lengths = self._lengths[alive]
            self._seeds = self._seeds[alive]
            self._sampled = self._sampled[alive]

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        """Logits [B, V] after the last of `ids` [B, L], whose keys and values join the cache."""
        optional: dict[str, Any] = {"position_ids": positions, "logits_to_keep": 1}
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            use_cache=True,
            **{self._cache_keyword: self._cache},
            **{name: value for name, value in optional.items() if name in self._takes},
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits
