"""The learner's log-probabilities of the tokens that were sampled.

A micro-batch of B completions becomes one forward: prompts (P tokens) end and completions
(C tokens) begin at one column, for all rows alike,

    input      [ .  .  p1 p2 | c1 c2 c3 ]          prompts left padded, completions right padded
    predicts               c1  c2 c3 c4            logits at the last C columns only

so the last token of the longest completion is no input, positions count from each row's first
prompt token, and what is padding is known by place, never by the value of a token. The filler id
is 0 and is masked; a tokenizer needs no pad token. The K tokens of all completions, the end token
of each included, then lie in one row after the other, [K].
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from antiphon.clients.types import FieldError
from antiphon.learner.arithmetic.samples import TrainedCompletion
from antiphon.services.common.sampling import TokenLogprobs, full_logprobs, token_logprobs


class LogprobSupport(StrEnum):
    """The tokens over which a log-probability is normalised, on both sides of the ratio."""

    SAMPLED = "sampled"
    FULL = "full"


@dataclass(frozen=True)
class Row:
    """A completion to a prompt, and the weight of each of its tokens in the minibatch's loss."""

    prompt_token_ids: tuple[int, ...]
    completion: TrainedCompletion
    weight: float

    @property
    def prompt_length(self) -> int:
        """P of this row."""
        return len(self.prompt_token_ids)

    @property
    def length(self) -> int:
        """C of this row."""
        return len(self.completion.token_ids)


@dataclass(frozen=True)
class MicroBatch:
    """Tensors of B rows and K completion tokens; S = P + C - 1 columns.

    `input_ids`, `attention_mask`, `position_ids` are int64 [B, S]; `places` int64 [K] are the
    completion tokens' places in the logits [B * C, V]; `token_ids`, `kept_sizes` are int64 [K];
    `engine_logprobs`, `advantages`, `weights` float32 [K], and `reference_logprobs` too where every
    row has them, else [0].
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    completion_columns: int
    places: Tensor
    token_ids: Tensor
    kept_sizes: Tensor
    engine_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    reference_logprobs: Tensor


def split_rows(rows: Sequence[Row], *, tokens: int, size: int | None = None) -> list[list[Row]]:
    """Micro-batches of rows of like lengths, of at most `tokens` columns in all.

    A row alone may exceed `tokens`. The sum over the micro-batches is that over the rows.

    Args:
        rows: All rows of a minibatch.
        tokens: Most rows times columns, padding included.
        size: Most rows; None sets no limit.
    """
    batches: list[list[Row]] = []
    widest = (0, 0)
    for row in sorted(rows, key=lambda row: (row.prompt_length, row.length)):
        grown = (max(widest[0], row.prompt_length), max(widest[1], row.length))
        count = len(batches[-1]) + 1 if batches else 1
        fits = count * sum(grown) <= tokens and (size is None or count <= size)
        if batches and fits:
            batches[-1].append(row)
            widest = grown
        else:
            batches.append([row])
            widest = (row.prompt_length, row.length)
    return batches


def collate(rows: Sequence[Row], support: str, device: torch.device) -> MicroBatch:
    """The tensors of a micro-batch.

    Raises:
        FieldError: `support` is unknown, a prompt or completion is empty, or the engine's
            log-probabilities that `support` needs did not come.
    """
    prompts = max(row.prompt_length for row in rows)
    completions = max(row.length for row in rows)
    columns = prompts + completions - 1
    input_ids = torch.zeros(len(rows), columns, dtype=torch.int64)
    attention_mask = torch.zeros_like(input_ids)
    places: list[int] = []
    for b, row in enumerate(rows):
        if not row.prompt_token_ids or not row.completion.token_ids:
            raise FieldError(
                "training sample",
                f"{row.prompt_length} prompt and {row.length} completion tokens",
                "at least one of each",
            )
        ids = row.prompt_token_ids + row.completion.token_ids
        start = prompts - row.prompt_length
        stop = min(start + len(ids), columns)
        input_ids[b, start:stop] = torch.tensor(ids[: stop - start])
        attention_mask[b, start:stop] = 1
        places += range(b * completions, b * completions + row.length)

    def per_token(values: Sequence[float]) -> Tensor:
        lengths = torch.tensor([row.length for row in rows])
        return torch.tensor(values, dtype=torch.float32).repeat_interleave(lengths)

    engine = [value for row in rows for value in _engine_logprobs(row.completion, support)]
    reference = [value for row in rows for value in row.completion.reference_logprobs]
    batch = MicroBatch(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=(attention_mask.cumsum(dim=1) - 1).clamp(min=0),
        completion_columns=completions,
        places=torch.tensor(places),
        token_ids=torch.tensor([t for row in rows for t in row.completion.token_ids]),
        kept_sizes=torch.tensor([k for row in rows for k in row.completion.kept_sizes]),
        engine_logprobs=torch.tensor(engine, dtype=torch.float32),
        advantages=per_token([row.completion.advantage for row in rows]),
        weights=per_token([row.weight for row in rows]),
        reference_logprobs=torch.tensor(
            reference if len(reference) == len(places) else [], dtype=torch.float32
        ),
    )
    return batch if device.type == "cpu" else _moved(batch, device)


def _engine_logprobs(completion: TrainedCompletion, support: str) -> tuple[float, ...]:
    if support == LogprobSupport.SAMPLED:
        return completion.logprobs
    if support != LogprobSupport.FULL:
        wanted = " or ".join(repr(s.value) for s in LogprobSupport)
        raise FieldError("logprob_support", repr(support), wanted)
    if len(completion.full_logprobs) != len(completion.token_ids):
        raise FieldError(
            "completion.full_logprobs",
            f"{len(completion.full_logprobs)} numbers",
            f"{len(completion.token_ids)}, one per token; logprob_support 'full' needs an engine "
            "that gives them and include_full_logprobs in the request",
        )
    return completion.full_logprobs


def _moved(batch: MicroBatch, device: torch.device) -> MicroBatch:
    moved: dict[str, Any] = {
        name: value.to(device) for name, value in vars(batch).items() if isinstance(value, Tensor)
    }
    return replace(batch, **moved)


def completion_logits(model: nn.Module, batch: MicroBatch) -> Tensor:
    """Logits that predict the completions' tokens, [K, V], with gradient."""
    accepted = inspect.signature(model.forward).parameters
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    inputs: dict[str, object] = {"input_ids": batch.input_ids}
    optional = {
        "attention_mask": batch.attention_mask,
        "position_ids": batch.position_ids,
        "logits_to_keep": batch.completion_columns,
        "use_cache": False,
    }
    inputs |= {name: value for name, value in optional.items() if name in accepted or open_ended}
    logits: Tensor = model(**inputs).logits
    logits = logits[:, -batch.completion_columns :]
    return logits.flatten(0, 1).index_select(0, batch.places)


def batch_logprobs(
    model: nn.Module, batch: MicroBatch, *, temperature: float, support: str
) -> TokenLogprobs:
    """Log-probabilities [K] under the model as it is now, with gradient, and what was forced.

    Args:
        model: A causal language model.
        batch: What `collate` made.
        temperature: The sampling temperature.
        support: A LogprobSupport; `sampled` rebuilds the kept set of the engine's size.
    """
    return support_logprobs(
        completion_logits(model, batch), batch, temperature=temperature, support=support
    )


def support_logprobs(
    logits: Tensor, batch: MicroBatch, *, temperature: float, support: str
) -> TokenLogprobs:
    """As `batch_logprobs`, from the logits [K, V] of the completions' tokens."""
    kept = batch.kept_sizes
    if support == LogprobSupport.FULL:
        kept = torch.full_like(kept, logits.shape[-1])
    return token_logprobs(logits, batch.token_ids, kept, temperature)


@torch.no_grad()
def plain_logprobs(
    model: nn.Module,
    rows: Sequence[Row],
    device: torch.device,
    *,
    tokens: int,
    size: int | None = None,
) -> list[tuple[float, ...]]:
    """Log-probabilities of each row's completion under the full softmax at temperature 1 [C].

    Args:
        model: A causal language model on `device`.
        rows: Completions and their prompts.
        device: Where it computes.
        tokens: Most rows times columns of one forward.
        size: Most rows of one forward; None sets no limit.
    """
    logprobs: dict[int, tuple[float, ...]] = {}
    for part in split_rows(rows, tokens=tokens, size=size):
        batch = collate(part, LogprobSupport.SAMPLED, device)
        values = full_logprobs(completion_logits(model, batch), batch.token_ids, 1.0)
        per_row = torch.split(values, [row.length for row in part])
        logprobs |= {id(row): tuple(v.tolist()) for row, v in zip(part, per_row, strict=True)}
    return [logprobs[id(row)] for row in rows]
