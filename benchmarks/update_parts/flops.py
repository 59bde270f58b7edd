"""The floating-point operations that an update needs, and how fast plain matrix products are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from antiphon.learner.arithmetic.samples import TrainingSample

SQUARE = 1024
"""Rows, columns and depth of the plain product."""


@dataclass(frozen=True)
class Needed:
    """What a minibatch needs: nothing twice, nothing for padding.

    `tokens` pass through the layers, `pairs` are those of query and key, `head` are tokens whose
    logits are made, `kept` all tokens of their sampling sets.
    """

    tokens: int
    pairs: int
    head: int
    kept: int


def needed(nodes: Sequence[TrainingSample]) -> Needed:
    """Each prompt once, each completion but its last token, logits at completion tokens alone."""
    tokens = pairs = head = kept = 0
    for node in nodes:
        prompt = len(node.prompt_token_ids)
        tokens += prompt
        pairs += prompt * (prompt + 1) // 2
        for completion in node.completions:
            inputs = len(completion.token_ids) - 1
            tokens += inputs
            pairs += inputs * prompt + inputs * (inputs + 1) // 2
            kept += sum(completion.kept_sizes)
        # The prompt's last token predicts the first token of every completion, once.
        head += 1 + sum(len(c.token_ids) - 1 for c in node.completions)
    return Needed(tokens, pairs, head, kept)


def needed_of(prompt: int, completions: int, tokens: int) -> Needed:
    """The same of one prompt with so many completions of so many tokens; sampling sets aside."""
    inputs = tokens - 1
    pairs = completions * (inputs * prompt + inputs * (inputs + 1) // 2)
    return Needed(
        tokens=prompt + completions * inputs,
        pairs=prompt * (prompt + 1) // 2 + pairs,
        head=1 + completions * inputs,
        kept=0,
    )


def flops(model: nn.Module, what: Needed) -> float:
    """Operations of forward and backward, two for each product and sum.

    Layers 2 x parameters a token forward and twice that backward; attention 4 x width a pair and
    layer forward (scores and sums of values), twice that backward; the head 2 x V x H a token
    forward, and backward 4 x H for each kept token, as the gradient of all others is 0.
    """
    config: Any = model.config
    layers = sum(p.numel() for n, p in model.named_parameters() if ".layers." in n and p.ndim == 2)
    width = config.num_attention_heads * config.head_dim
    return float(
        6 * layers * what.tokens
        + 12 * width * config.num_hidden_layers * what.pairs
        + 2 * config.vocab_size * config.hidden_size * what.head
        + 4 * config.hidden_size * what.kept
    )


def product_rate(seconds: float) -> float:
    """FLOP/s of plain float32 matrix products of this thread, over so many seconds."""
    left, right = torch.randn(2, SQUARE, SQUARE)
    out = torch.empty(SQUARE, SQUARE)
    torch.mm(left, right, out=out)
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        torch.mm(left, right, out=out)
        count += 1
    return count * 2 * SQUARE**3 / passed
