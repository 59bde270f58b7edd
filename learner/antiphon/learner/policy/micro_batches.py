"""Micro-batches: how the completions of a minibatch become the rows of a few forwards.

The completions of one prompt share it: the prompt is one row's beginning, and its completions
follow one after the other, each of which sees the prompt and itself,

    input      [ p1 p2 p3 | a1 a2 | b1 | . ]       the last token of a completion is no input
    position     0  1  2    3  4    3    0
    predicts           a1   a2 a3   b2             p3 predicts the first token of each, a1 and b1

so P prompt tokens are computed once for G completions. Rows are padded on the right, where no token
of theirs looks. What is padding is known by place, never by the value of a token; the filler id is
0, and a tokenizer needs no pad token. A model that cannot be told which tokens see which
(`antiphon.learner.policy.forward`) gets each completion with a prompt of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from antiphon.clients.types import FieldError
from antiphon.learner.arithmetic.samples import TrainedCompletion


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


Pack = Sequence[Row]
"""Completions that share the prompt in front of them, at least one."""


@dataclass(frozen=True)
class Tokens:
    """The K completion tokens of a micro-batch, one row after the other, end tokens included.

    `token_ids`, `kept_sizes` int64 [K]; `engine_logprobs`, `advantages`, `weights` float32 [K], and
    `reference_logprobs` too where every row has them, else [0].
    """

    token_ids: Tensor
    kept_sizes: Tensor
    engine_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    reference_logprobs: Tensor

    def __len__(self) -> int:
        """K."""
        return self.token_ids.numel()

    def split(self, size: int) -> list[Tokens]:
        """Parts of at most `size` tokens, in order."""
        names = list(vars(self))
        columns = [vars(self)[name].split(size) for name in names]
        longest = max(len(parts) for parts in columns)
        empty = self.reference_logprobs.new_zeros(0)
        return [
            Tokens(
                **{n: c[k] if k < len(c) else empty for n, c in zip(names, columns, strict=True)}
            )
            for k in range(longest)
        ]


@dataclass(frozen=True)
class MicroBatch:
    """Tensors of B rows, S columns and K completion tokens.

    `input_ids`, `position_ids` int64 [B, S]; `attention_mask` bool, [B, S] where every row has one
    completion, else [B, 1, S, S], which queries see which keys; `layout` what lies in each row: the
    tokens of its prompt, then of each completion; `places` int64 [K], where in the B * S columns
    each completion token is predicted.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    layout: tuple[tuple[int, ...], ...]
    places: Tensor
    tokens: Tokens


def split_rows(
    rows: Sequence[Row], *, tokens: int, size: int | None = None, shared_up_to: int
) -> list[list[Pack]]:
    """Micro-batches of packs of like lengths, of at most `tokens` columns in all.

    A pack alone may exceed `tokens`: with a single completion, or where its prompt is more than
    half of that, so that repeating the prompt never costs more than the completions do. The sum
    over the micro-batches is that over the rows.

    Args:
        rows: All rows of a minibatch.
        tokens: Most packs times columns, padding included.
        size: Most completions; None sets no limit.
        shared_up_to: Longest prompt and completion together of which the prompt may be shared.
    """
    packs = sorted(
        _packs(rows, tokens, size, shared_up_to), key=lambda pack: (_shares(pack), _columns(pack))
    )
    batches: list[list[Pack]] = []
    completions = 0
    for pack in packs:
        count = len(batches[-1]) + 1 if batches else 1
        fits = count * _columns(pack) <= tokens and (
            size is None or completions + len(pack) <= size
        )
        # A model applies its own window to a row alone; a mask of shared prompts replaces it.
        if batches and fits and _shares(batches[-1][0]) == _shares(pack):
            batches[-1].append(pack)
            completions += len(pack)
        else:
            batches.append([pack])
            completions = len(pack)
    return batches


def plain_row(prompt: tuple[int, ...], completion: tuple[int, ...]) -> Row:
    """A completion that is only looked at: it has no part in a loss."""
    zeros = (0.0,) * len(completion)
    return Row(prompt, TrainedCompletion(completion, zeros, (1,) * len(zeros), 0.0, 0.0), 0.0)


def idle_pack() -> Pack:
    """A pack of one token that has no gradient, for a process that only keeps others company."""
    token = TrainedCompletion((0,), (0.0,), (1,), 0.0, 0.0, (0.0,), (0.0,))
    return [Row((0,), token, 0.0)]


def _shares(pack: Pack) -> bool:
    return len(pack) > 1


def _packs(
    rows: Sequence[Row], tokens: int, size: int | None, shared_up_to: int
) -> Iterator[list[Row]]:
    groups: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.prompt_token_ids, []).append(row)
    for prompt, group in groups.items():
        most = max(tokens, 2 * len(prompt))
        pack: list[Row] = []
        for row in sorted(group, key=lambda row: row.length):
            may_share = len(prompt) + row.length <= shared_up_to and len(pack) != size
            if pack and not (may_share and _columns([*pack, row]) <= most):
                yield pack
                pack = []
            pack.append(row)
        yield pack


def _columns(pack: Pack) -> int:
    return pack[0].prompt_length + sum(row.length - 1 for row in pack)


def collate(packs: Sequence[Pack], support: str, device: torch.device) -> MicroBatch:
    """The tensors of a micro-batch.

    Raises:
        FieldError: `support` is unknown, a prompt or completion is empty, or the engine's
            log-probabilities that `support` needs did not come.
    """
    rows = [row for pack in packs for row in pack]
    for row in rows:
        if not row.prompt_token_ids or not row.completion.token_ids:
            raise FieldError(
                "training sample",
                f"{row.prompt_length} prompt and {row.length} completion tokens",
                "at least one of each",
            )
    columns = max(_columns(pack) for pack in packs)
    input_ids: list[list[int]] = []
    position_ids: list[list[int]] = []
    # 0 is the prompt, k the pack's k-th completion from 1, -1 padding.
    parts: list[list[int]] = []
    places: list[int] = []
    for b, pack in enumerate(packs):
        prompt = pack[0].prompt_token_ids
        ids, positions, part = list(prompt), list(range(len(prompt))), [0] * len(prompt)
        for k, row in enumerate(pack, start=1):
            inputs = row.length - 1
            start = b * columns + len(ids)
            places += (b * columns + len(prompt) - 1, *range(start, start + inputs))
            ids += row.completion.token_ids[:-1]
            positions += range(len(prompt), len(prompt) + inputs)
            part += [k] * inputs
        padding = columns - len(ids)
        input_ids.append(ids + [0] * padding)
        position_ids.append(positions + [0] * padding)
        parts.append(part + [-1] * padding)
    part_of = torch.tensor(parts)
    batch = MicroBatch(
        input_ids=torch.tensor(input_ids),
        attention_mask=_seen(part_of) if any(_shares(pack) for pack in packs) else part_of >= 0,
        position_ids=torch.tensor(position_ids),
        layout=tuple((p[0].prompt_length, *(row.length - 1 for row in p)) for p in packs),
        places=torch.tensor(places),
        tokens=_tokens(rows, support),
    )
    return batch if device.type == "cpu" else _moved(batch, device)


def _seen(part: Tensor) -> Tensor:
    """Which earlier keys each query sees, [B, 1, S, S]: the prompt's and its own completion's.

    Padding sees the prompt too, so that no query is without a key.
    """
    query, key = part[:, None, :, None], part[:, None, None, :]
    columns = torch.arange(part.shape[1])
    return (columns[:, None] >= columns) & ((key == 0) | (key == query))


def _tokens(rows: Sequence[Row], support: str) -> Tokens:
    lengths = torch.tensor([row.length for row in rows])

    def per_token(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32).repeat_interleave(lengths)

    engine = [value for row in rows for value in _engine_logprobs(row.completion, support)]
    reference = [value for row in rows for value in row.completion.reference_logprobs]
    whole = len(reference) == int(lengths.sum())
    return Tokens(
        token_ids=torch.tensor([t for row in rows for t in row.completion.token_ids]),
        kept_sizes=torch.tensor([k for row in rows for k in row.completion.kept_sizes]),
        engine_logprobs=torch.tensor(engine, dtype=torch.float32),
        advantages=per_token([row.completion.advantage for row in rows]),
        weights=per_token([row.weight for row in rows]),
        reference_logprobs=torch.tensor(reference if whole else [], dtype=torch.float32),
    )


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
    return replace(
        batch,
        input_ids=batch.input_ids.to(device),
        attention_mask=batch.attention_mask.to(device),
        position_ids=batch.position_ids.to(device),
        places=batch.places.to(device),
        tokens=Tokens(**{name: value.to(device) for name, value in vars(batch.tokens).items()}),
    )
