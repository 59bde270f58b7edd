"""The loss of one agent's minibatch, as pure functions.

Per token t of a completion with advantage A,

    rho_t  = pi_now(t) / pi_engine(t)        from the log-probabilities that came with the tokens
    l_t    = -min(rho_t A, clip(rho_t, 1 - clip_low, 1 + clip_high) A)
    l_t    = -A log pi_now(t)                where the ratio is off

whose gradients are equal at rho = 1 (PPO's clip, arXiv 1707.06347). With a `ratio_cap` c, for
tokens that may be stale, rho first becomes rho * stopgrad(min(1, c / rho)) (truncated importance
weights, as in V-trace, arXiv 1802.01561). Over the minibatch's live nodes,

    sequence   sum over tokens, mean over the node's completions, mean over nodes
    token      sum over all tokens / number of tokens
    constant   sum over all tokens / (number of completions * max_new_tokens)

Each is a weight per token that depends on the minibatch alone: loss = sum_t w_t l_t. So the sum
over micro-batches, and its gradient, is that of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from antiphon.clients.types import FieldError
from antiphon.learner.arithmetic.samples import TrainingSample

RATIO_CAP = 2.0


class LossNormalization(StrEnum):
    """What the sum over tokens is divided by."""

    SEQUENCE = "sequence"
    TOKEN = "token"  # noqa: S105 (not a password)
    CONSTANT = "constant"


@dataclass(frozen=True)
class LossTokens:
    """K tokens, float32 [K] each; only `logprobs` has a gradient."""

    logprobs: Tensor
    engine_logprobs: Tensor
    advantages: Tensor
    weights: Tensor


@dataclass(frozen=True)
class LossStats:
    """Sums and maxima over tokens, so that micro-batches add up with `+`.

    The gap is |log pi_now - log pi_engine|; `clipped` counts tokens whose gradient the clip took,
    `truncated` those whose ratio was above the cap, `forced` those that the learner's own kept set
    had left out. `kl_loss` is the part of `loss` that a reference KL adds.
    """

    tokens: int = 0
    loss: float = 0.0
    ratio_sum: float = 0.0
    ratio_max: float = 0.0
    clipped: int = 0
    truncated: int = 0
    gap_sum: float = 0.0
    gap_max: float = 0.0
    entropy_sum: float = 0.0
    kl_loss: float = 0.0
    forced: int = 0

    def __add__(self, other: LossStats) -> LossStats:
        return LossStats(
            tokens=self.tokens + other.tokens,
            loss=self.loss + other.loss,
            ratio_sum=self.ratio_sum + other.ratio_sum,
            ratio_max=max(self.ratio_max, other.ratio_max),
            clipped=self.clipped + other.clipped,
            truncated=self.truncated + other.truncated,
            gap_sum=self.gap_sum + other.gap_sum,
            gap_max=max(self.gap_max, other.gap_max),
            entropy_sum=self.entropy_sum + other.entropy_sum,
            kl_loss=self.kl_loss + other.kl_loss,
            forced=self.forced + other.forced,
        )


def token_weights(
    nodes: Sequence[TrainingSample], normalization: str, max_new_tokens: int
) -> list[list[float]]:
    """Weight of each token of each completion, [nodes][completions].

    Args:
        nodes: The live nodes of a minibatch.
        normalization: A LossNormalization.
        max_new_tokens: The budget that `constant` divides by.

    Raises:
        FieldError: `normalization` is not one of LossNormalization.
    """
    completions = [completion for node in nodes for completion in node.completions]
    if normalization == LossNormalization.SEQUENCE:
        return [
            [1.0 / (len(nodes) * len(node.completions))] * len(node.completions) for node in nodes
        ]
    if normalization == LossNormalization.TOKEN:
        weight = 1.0 / sum(len(completion.token_ids) for completion in completions)
    elif normalization == LossNormalization.CONSTANT:
        weight = 1.0 / (len(completions) * max_new_tokens)
    else:
        wanted = ", ".join(repr(n.value) for n in LossNormalization)
        raise FieldError("loss_normalization", repr(normalization), f"one of {wanted}")
    return [[weight] * len(node.completions) for node in nodes]


def policy_loss(
    tokens: LossTokens,
    *,
    importance_ratio: bool = True,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    ratio_cap: float | None = None,
) -> tuple[Tensor, LossStats]:
    """The loss (a scalar with gradient) and what is worth knowing of it.

    Args:
        tokens: The tokens of a minibatch, or of a part of it.
        importance_ratio: False takes -A log pi.
        clip_low: The ratio is clipped at 1 - clip_low.
        clip_high: The ratio is clipped at 1 + clip_high.
        ratio_cap: c of the truncation; None leaves the ratio as it is.
    """
    gap = tokens.logprobs - tokens.engine_logprobs
    ratio = gap.exp()
    clipped = torch.zeros_like(gap, dtype=torch.bool)
    if importance_ratio:
        used = ratio if ratio_cap is None else ratio * (ratio_cap / ratio).clamp(max=1.0).detach()
        plain = used * tokens.advantages
        bounded = used.clamp(1.0 - clip_low, 1.0 + clip_high) * tokens.advantages
        clipped = bounded < plain
        per_token = -torch.minimum(plain, bounded)
    else:
        per_token = -tokens.advantages * tokens.logprobs
    loss = (tokens.weights * per_token).sum()
    with torch.no_grad():
        distance = gap.abs()
        stats = LossStats(
            tokens=gap.numel(),
            loss=loss.item(),
            ratio_sum=ratio.sum().item(),
            ratio_max=ratio.max().item(),
            clipped=int(clipped.sum().item()),
            truncated=0 if ratio_cap is None else int((ratio > ratio_cap).sum().item()),
            gap_sum=distance.sum().item(),
            gap_max=distance.max().item(),
        )
    return loss, stats
