"""The decode loop: rows of one batch from their prompts to their ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from antiphon.clients.types import FinishReason, SamplingParameters, WeightsSpan
from antiphon.services.common.sampling import sample, seeds_tensor, uniform
from antiphon.services.generation.cache import reorder_rows
from antiphon.services.generation.decoder import Decoder
from antiphon.services.generation.prefill import Prefix, prefill


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
    """Rows that are decoded together. B counts those under way, V the vocabulary.

    At most `size` rows are under way. A row that ends leaves at once, so it stops costing, and
    rows that wait join once an eighth of the places is free. All rows end at the same column of
    the cache and begin where their prompt does: the longest prompts come first, so that those that
    join later fit. Each distinct prefix is prefilled once and its cache repeated over its rows.
    Nothing is kept beyond the batch. What is computed follows from the rows alone.

    Args:
        decoder: The model.
        rows: At least one.
        sampling: Common to all rows.
        end_ids: A row ends with any of them.
        full: Also note log-probabilities under the full softmax.
        size: Most rows decoded together.
    """

    def __init__(
        self,
        decoder: Decoder,
        rows: Sequence[Row],
        sampling: SamplingParameters,
        end_ids: frozenset[int],
        *,
        full: bool,
        size: int,
    ) -> None:
        self._decoder = decoder
        self._sampling = sampling
        self._end_ids = end_ids
        self._full = full
        self._size = size
        self._waiting = deque(sorted(rows, key=lambda row: -len(row.prompt)))
        self._prefixes: dict[tuple[int, ...], Prefix] = {}
        self.rows: list[Row] = []
        """The rows under way."""
        self._clear()

    def _clear(self) -> None:
        self._cache = self._decoder.new_cache()
        self._columns = 0
        self._starts: list[int] = []
        self._logits: Tensor | None = None

    @property
    def unfinished(self) -> bool:
        """Whether any row is under way or waits."""
        return bool(self.rows or self._waiting)

    @property
    def cache_tokens(self) -> int:
        """Places of the key-value cache, padding included."""
        return len(self.rows) * self._columns

    @property
    def rows_are_due(self) -> bool:
        """Whether rows that wait should be let in now."""
        if not self._waiting or not self.rows:
            return bool(self._waiting)
        free = self._size - len(self.rows)
        enough = free >= min(-(-self._size // 8), len(self._waiting))
        return self._decoder.rows_can_join and enough

    @torch.inference_mode()
    def admit(self, weights_version: int) -> int:
        """Lets waiting rows in and returns how many prompt tokens were computed for them."""
        count = min(self._size - len(self.rows), len(self._waiting))
        return self._join([self._waiting.popleft() for _ in range(count)], weights_version)

    @torch.inference_mode()
    def restart(self, weights_version: int) -> None:
        """Computes the cache of the rows under way anew, under the present weights."""
        rows, self.rows = self.rows, []
        self._prefixes = {}
        self._clear()
        if rows:
            self._join(rows, weights_version)

    @torch.inference_mode()
    def sample(self) -> list[Row]:
        """Samples one token for every row under way and returns the rows that ended with it.

        The others need `advance` or `restart` before the next token.

        Raises:
            FloatingPointError: The model's logits are not finite.
        """
        assert self._logits is not None
        positions = torch.tensor([len(row.token_ids) for row in self.rows])
        uniforms = uniform(seeds_tensor([row.seed for row in self.rows]), positions)
        drawn = sample(
            self._logits, self._sampling, uniforms.to(self._decoder.device), full=self._full
        )
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
        self._logits = None
        ended = [row for row in self.rows if row.finish_reason is not None]
        if ended:
            self._drop_ended()
        return ended

    @torch.inference_mode()
    def advance(self) -> None:
        """Feeds the sampled tokens to the model, which gives the logits of the next ones."""
        ids = torch.tensor([[row.token_ids[-1]] for row in self.rows])
        starts = torch.tensor([[start] for start in self._starts])
        positions = self._columns - starts
        self._columns += 1
        mask = torch.arange(self._columns) >= starts
        device = self._decoder.device
        self._logits = self._decoder(
            ids.to(device), mask.to(device), positions.to(device), self._cache
        )

    def _join(self, rows: Sequence[Row], weights_version: int) -> int:
        prefixes = [row.prompt + tuple(row.token_ids) for row in rows]
        missing = [p for p in dict.fromkeys(prefixes) if p not in self._prefixes]
        if missing:
            self._prefixes |= prefill(self._decoder, missing)
        found = [self._prefixes[prefix] for prefix in prefixes]
        self._columns = max([self._columns, *map(len, prefixes)])
        if self._decoder.rows_can_join:
            self._append(found)
            wanted = {row.prompt for row in self._waiting}
            self._prefixes = {p: found for p, found in self._prefixes.items() if p in wanted}
        else:
            self._take_over(found)
            self._prefixes = {}
        logits = torch.stack([prefix.logits for prefix in found])
        self._logits = logits if self._logits is None else torch.cat([self._logits, logits])
        for row, prefix in zip(rows, prefixes, strict=True):
            row.begin_span(weights_version)
            self.rows.append(row)
            self._starts.append(self._columns - len(prefix))
        return sum(map(len, missing))

    def _append(self, found: Sequence[Prefix]) -> None:
        """Copies prefixes to the cache, those of one group at a time as they come."""
        begin = 0
        for end in range(1, len(found) + 1):
            if end == len(found) or found[end].cache is not found[begin].cache:
                cache = found[begin].cache
                places = torch.tensor(
                    [prefix.place for prefix in found[begin:end]], device=self._decoder.device
                )
                for mine, theirs in zip(self._cache.layers, cache.layers, strict=True):
                    mine.join(theirs, places, self._columns)
                begin = end

    def _take_over(self, found: Sequence[Prefix]) -> None:
        """Makes the cache of prefixes that were computed as one group that of the batch."""
        self._cache = found[0].cache
        places = torch.tensor([prefix.place for prefix in found], device=self._decoder.device)
        self._cache.batch_select_indices(places)

    def _drop_ended(self) -> None:
        """Takes ended rows out; rows from the end take their places."""
        alive = [i for i, row in enumerate(self.rows) if row.finish_reason is None]
        order = list(range(len(alive)))
        moving = [i for i in alive if i >= len(alive)]
        for place in order:
            if self.rows[place].finish_reason is not None:
                order[place] = moving.pop()
        self.rows = [self.rows[i] for i in order]
        self._starts = [self._starts[i] for i in order]
        if not self.rows:
            self._clear()
            return
        reorder_rows(self._cache, order, self._decoder.device)
        first = min(self._starts)
        if first and self._decoder.rows_can_join:
            for layer in self._cache.layers:
                layer.drop_first(first)
            self._starts = [start - first for start in self._starts]
            self._columns -= first

    def _note_full(self, values: Tensor | None, name: str) -> None:
        if values is not None:
            for row, value in zip(self.rows, values.tolist(), strict=True):
                getattr(row, name).append(value)
