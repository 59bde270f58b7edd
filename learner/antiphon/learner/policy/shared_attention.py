"""Attention over packs, without the pairs of tokens that do not see each other.

In a row of a prompt (P tokens) and completions (C_k inputs) behind it, a mask [S, S] costs all
(P + sum C_k)^2 pairs. In blocks it is

    prompt       causal over itself                            P^2
    completions  all of them together over the prompt          P sum C_k
                 each causal over itself                       sum C_k^2

where the two parts of a completion's attention, o_1 and o_2 with log-sums l_1 and l_2 of their
scores' exponentials, join to

    l = log(e^l_1 + e^l_2)        o = e^(l_1 - l) o_1 + e^(l_2 - l) o_2

Going backward each block's gradient is that of a softmax whose log-sum is l and whose output is o.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

Layout: TypeAlias = Sequence[Sequence[int]]
"""Of each row the tokens of its prompt, then of each completion; what is left is padding."""

_NAME = "antiphon_shared_prompts"
_ATTEND = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_BACK = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_CHANGES = ("position_bias", "softcap", "s_aux")
"""Arguments of transformers' attention that make it another one."""


class SharedAttention:
    """The modules of a model that ask their config for torch's attention, in float32 on a CPU.

    Args:
        model: A model of transformers; of any other there are none.
    """

    def __init__(self, model: nn.Module) -> None:
        plain = all(p.device.type == "cpu" and p.dtype == torch.float32 for p in model.parameters())
        self._modules = [m for m in model.modules() if _asks(m)] if plain else []

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._modules)

    @contextmanager
    def in_blocks(self) -> Iterator[None]:
        """Within it, their attention is that of blocks where the model is given `shared`, a Layout.

        They get a config of their own, for a model's may be another model's too.
        """
        before = [module.config for module in self._modules]
        own = {id(config): _with_blocks(config) for config in before}
        for module in self._modules:
            module.config = own[id(module.config)]
        try:
            yield
        finally:
            for module, config in zip(self._modules, before, strict=True):
                module.config = config


def _asks(module: Any) -> bool:
    if isinstance(module, PreTrainedModel):
        return False
    return getattr(vars(module).get("config"), "_attn_implementation", None) == "sdpa"


def _with_blocks(config: Any) -> Any:
    config = copy.copy(config)
    config._attn_implementation_internal = _NAME  # Not those of its parts, which it shares.
    return config


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    shared: Layout | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: heads [B, H, S, D] in, [B, S, H, D] out.

    Raises:
        ValueError: The attention is of another kind.
    """
    if shared is None:
        usual = ALL_ATTENTION_FUNCTIONS["sdpa"]
        made: tuple[Tensor, None] = usual(
            module, query, key, value, attention_mask, dropout, scaling, **more
        )
        return made
    changed = [name for name in _CHANGES if more.get(name) is not None]
    if dropout or changed or more.get("is_causal") is False:
        raise ValueError(f"attention in blocks does not know {changed or 'dropout, all pairs'}")
    found: Tensor = _Blocks.apply(query, key, value, scaling, shared)  # type: ignore[no-untyped-call]
    return found.transpose(1, 2), None


AttentionInterface.register(_NAME, _attention)


class _Blocks(torch.autograd.Function):
    """Attention [B, H, S, D], stored as [B, S, H, D]."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float | None, layout: Layout
    ) -> Tensor:
        out, sums = _room(query), _room(query[..., :1])
        for b, row in enumerate(map(_Row, layout)):
            q, k, v, o, s = (x[b] for x in (query, key, value, out, sums))
            o[:, row.end :] = 0
            for part in (row.prompt, *row.completions):
                found, found_sums = _ATTEND(
                    part.of(q), part.of(k), part.of(v), is_causal=True, scale=scale
                )
                part.of(o).copy_(found)
                part.of(s).copy_(found_sums.unsqueeze(-1))
            if row.completions:
                over, over_sums = _ATTEND(
                    row.rest.of(q), row.prompt.of(k), row.prompt.of(v), scale=scale
                )
                _join(row.rest.of(o), row.rest.of(s), over, over_sums.unsqueeze(-1))
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.scale, ctx.layout = scale, layout
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, sums = ctx.saved_tensors
        found = tuple(map(_room, (query, key, value)))
        for b, row in enumerate(map(_Row, ctx.layout)):
            given = [x[b] for x in (gradient, query, key, value, out, sums)]
            by = [x[b] for x in found]
            for part in (row.prompt, *row.completions):
                for one, own in zip(by, _back(given, part, part, ctx.scale), strict=True):
                    one[:, row.end :] = 0
                    part.of(one).copy_(own)
            if row.completions:
                over = _back(given, row.rest, row.prompt, ctx.scale)
                for one, part, more in zip(
                    by, (row.rest, row.prompt, row.prompt), over, strict=True
                ):
                    part.of(one).add_(more)
        return *found, None, None


def _back(
    given: Sequence[Tensor], queries: _Part, keys: _Part, scale: float | None
) -> tuple[Tensor, ...]:
    """Gradient by queries, keys and values of one block; causal where it is over itself."""
    gradient, query, key, value, out, sums = given
    found: tuple[Tensor, ...] = _BACK(
        queries.of(gradient),
        queries.of(query),
        keys.of(key),
        keys.of(value),
        queries.of(out),
        queries.of(sums).squeeze(-1),
        0.0,
        queries == keys,
        scale=scale,
    )
    return found


@dataclass(frozen=True)
class _Part:
    """So many pieces of equal length, one behind the other."""

    start: int
    count: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.count * self.length

    def of(self, row: Tensor) -> Tensor:
        """These tokens of a row [H, S, D] as [count, H, length, D], sharing its memory."""
        heads, _, size = row.shape
        pieces = row[:, self.start : self.end].view(heads, self.count, self.length, size)
        return pieces.transpose(0, 1)


class _Row:
    """A row's prompt, its completions (those of one length together), and all of these as one."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.prompt = _Part(0, 1, lengths[0])
        self.completions: list[_Part] = []
        self.end = lengths[0]
        for length, some in itertools.groupby(length for length in lengths[1:] if length):
            self.completions.append(_Part(self.end, len(list(some)), length))
            self.end = self.completions[-1].end
        self.rest = _Part(lengths[0], 1, self.end - lengths[0])


def _join(out: Tensor, sums: Tensor, over: Tensor, over_sums: Tensor) -> None:
    """Join the attention over a completion itself, in place, with that over its prompt."""
    joined = torch.logaddexp(sums, over_sums)
    out.mul_((sums - joined).exp_()).addcmul_(over, (over_sums - joined).exp_())
    sums.copy_(joined)


def _room(like: Tensor) -> Tensor:
    """[B, H, S, D] without values, token after token."""
    b, h, s, d = like.shape
    return like.new_empty(b, s, h, d).transpose(1, 2)
