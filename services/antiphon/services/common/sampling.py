"""The sampling distribution, one for the engine that draws and the loss that differentiates.

Logits are divided by the temperature, then the `top_k` likeliest tokens are kept, then the smallest
set of likeliest tokens whose probability reaches `top_p`; what is kept is renormalised. B counts
rows, V the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.clients.types import SamplingParameters
from antiphon.services.common.likeliest import likeliest

_FIRST_NUCLEUS = 1024


def _signed(value: int) -> int:
    """The int64 with the bit pattern of a uint64."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One sampled token per row, all of shape [B].

    `logprobs` are under the distribution sampled from, which kept `kept_sizes` tokens. On request
    `full_logprobs` are under the whole softmax at the sampling temperature (None at temperature 0)
    and `full_logprobs_temperature_1` under that at temperature 1. Natural logarithms, float32.
    """

    ids: Tensor
    logprobs: Tensor
    kept_sizes: Tensor
    full_logprobs: Tensor | None = None
    full_logprobs_temperature_1: Tensor | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What a model says of given tokens, all of shape [...].

    `forced` says whether a token had to be put into its set; `entropy` is that of the distribution
    that the token was drawn from, -sum(p log p) over the set, without gradient.
    """

    logprobs: Tensor
    forced: Tensor
    entropy: Tensor


def seeds_tensor(seeds: list[int]) -> Tensor:
    """Unsigned 64-bit seeds as the int64 tensor [B] of the same bits."""
    return torch.tensor([_signed(seed) for seed in seeds], dtype=torch.int64)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64, in wrapping int64 arithmetic."""
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """Uniform numbers in [0, 1), one per (seed, position) and independent of everything else.

    Args:
        seeds: Bit patterns of unsigned 64-bit seeds, int64 [B].
        positions: Index of the token within its completion, int64 [B].

    Returns:
        float64 [B] with 53 random bits each.
    """
    stream = _mix(seeds + _GOLDEN)
    bits = _mix(stream + (positions + 1) * _GOLDEN)
    return _shift_right(bits, 11).to(torch.float64) * 2.0**-53


def sample(
    logits: Tensor, parameters: SamplingParameters, uniforms: Tensor, *, full: bool = False
) -> SampledTokens:
    """Draws one token per row by inverting the cumulative distribution at `uniforms`.

    A row whose largest logit is not finite gets a log-probability that is not finite.

    Args:
        logits: [B, V].
        parameters: Temperature 0 takes the likeliest token and ignores the uniform numbers.
        uniforms: In [0, 1), float64 [B].
        full: Also give the log-probabilities under the whole softmax.
    """
    logits = logits.float()
    if parameters.temperature == 0:
        largest, ids = logits.max(dim=-1)
        drawn = SampledTokens(ids, largest - largest, torch.ones_like(ids))
    else:
        drawn = _draw(logits, parameters, uniforms)
    if not full:
        return drawn
    greedy = parameters.temperature == 0
    return SampledTokens(
        drawn.ids,
        drawn.logprobs,
        drawn.kept_sizes,
        None if greedy else full_logprobs(logits, drawn.ids, parameters.temperature),
        full_logprobs(logits, drawn.ids, 1.0),
    )


def _draw(logits: Tensor, parameters: SamplingParameters, uniforms: Tensor) -> SampledTokens:
    size, temperature = logits.shape[-1], parameters.temperature
    top_k = size if parameters.top_k is None else min(parameters.top_k, size)
    top_p = 1.0 if parameters.top_p is None else parameters.top_p
    if top_k == size and top_p >= 1.0:
        scaled = scale(logits, temperature)
        log_total = scaled.logsumexp(dim=-1, keepdim=True)
        at = _invert((scaled - log_total).exp(), uniforms)
        logprobs = (scaled.gather(-1, at) - log_total).squeeze(-1)
        ids = at.squeeze(-1)
        return SampledTokens(ids, logprobs, torch.full_like(ids, size))
    if top_k < size:
        # Scaling the few that are kept spares two passes over the vocabulary.
        values, order = _likeliest(logits, top_k)
        values = (values - values[:, :1]) / temperature
        kept_sizes = _nucleus_sizes(values, values.logsumexp(dim=-1, keepdim=True), top_p)
    else:
        values, order, kept_sizes = _nucleus(scale(logits, temperature), top_p)
    outside = torch.arange(values.shape[-1], device=values.device) >= kept_sizes[:, None]
    values = values.masked_fill(outside, -torch.inf)
    log_total = values.logsumexp(dim=-1, keepdim=True)
    at = _invert((values - log_total).exp(), uniforms)
    at = torch.minimum(at, kept_sizes[:, None] - 1)
    logprobs = (values.gather(-1, at) - log_total).squeeze(-1)
    return SampledTokens(order.gather(-1, at).squeeze(-1), logprobs, kept_sizes)


def _likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values of each row, descending, lower id first among equals."""
    order = likeliest(logits, count).sort(dim=-1).values
    values, within = logits.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return values, order.gather(-1, within)


def _nucleus_sizes(values: Tensor, log_total: Tensor, top_p: float) -> Tensor:
    """How many of the descending `values` it takes until their probability reaches `top_p`."""
    if top_p >= 1.0:
        return torch.full(values.shape[:1], values.shape[-1], device=values.device)
    before = (values - log_total).double().exp().cumsum(dim=-1)[:, :-1]
    return 1 + (before < top_p).sum(dim=-1)


def _nucleus(scaled: Tensor, top_p: float) -> tuple[Tensor, Tensor, Tensor]:
    """Values and ids of the likeliest tokens, enough of them to hold every row's nucleus."""
    size = scaled.shape[-1]
    log_total = scaled.logsumexp(dim=-1, keepdim=True)
    count = min(_FIRST_NUCLEUS, size)
    while True:
        values, order = _likeliest(scaled, count)
        reached = (values - log_total).double().exp().sum(dim=-1) >= top_p
        if count == size or bool(reached.all()):
            return values, order, _nucleus_sizes(values, log_total, top_p)
        count = min(8 * count, size)


def _invert(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Index [B, 1] of the first token whose cumulative probability exceeds the uniform number."""
    cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
    targets = uniforms[:, None].to(cumulative.device) * cumulative[:, -1:]
    at = torch.searchsorted(cumulative, targets, right=True)
    return at.clamp(max=probabilities.shape[-1] - 1)


def scale(logits: Tensor, temperature: float) -> Tensor:
    """Logits [..., V] over the temperature, in float32, shifted so that the largest is 0.

    Without the shift a small temperature would cost precision where the probability is.
    """
    logits = logits.float()
    return (logits - logits.detach().amax(dim=-1, keepdim=True)) / temperature


def token_logprobs(
    logits: Tensor, token_ids: Tensor, kept_sizes: Tensor, temperature: float
) -> TokenLogprobs:
    """Log-probabilities of tokens that were sampled elsewhere, differentiable in `logits`.

    The kept set of each position is rebuilt from `logits`, without gradient through the choice, at
    the size that the engine reported. The sampled token is always in it: where the largest logits
    leave it out, it takes the place of the smallest kept one and counts as forced.

    Args:
        logits: [..., V].
        token_ids: Sampled ids, int64 [...].
        kept_sizes: Sizes of the sampling sets, int64 [...], each in 1..V.
        temperature: The sampling temperature; 0 for greedy decoding.
    """
    size, shape = logits.shape[-1], token_ids.shape
    flat, ids, kept = logits.reshape(-1, size), token_ids.reshape(-1), kept_sizes.reshape(-1)
    if temperature == 0:
        temperature = 1.0  # A set of one token has log-probability 0 at any temperature.
    logprobs = torch.zeros(ids.shape, dtype=torch.float32, device=logits.device)
    forced = torch.zeros(ids.shape, dtype=torch.bool, device=logits.device)
    entropies = torch.zeros_like(logprobs)
    whole = kept >= size
    if bool(whole.any()):
        rows = whole.nonzero().squeeze(-1)
        logprobs = logprobs.index_put((rows,), full_logprobs(flat[rows], ids[rows], temperature))
        entropies[rows] = entropy(flat[rows].detach(), temperature)
    if not bool(whole.all()):
        rows = (~whole).nonzero().squeeze(-1)
        part = flat if rows.shape[0] == flat.shape[0] else flat[rows]
        values, out, spread = _within_kept(part, ids[rows], kept[rows], temperature)
        logprobs = logprobs.index_put((rows,), values)
        forced[rows], entropies[rows] = out, spread
    return TokenLogprobs(logprobs.reshape(shape), forced.reshape(shape), entropies.reshape(shape))


def _within_kept(
    logits: Tensor, ids: Tensor, kept: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`token_logprobs` for rows [M, V] that keep less than the vocabulary."""
    sets = kept_sets(logits, ids, kept, int(kept.max()))
    found = kept_logprobs(logits.gather(-1, sets.order), sets, temperature)
    return found.logprobs, found.forced, found.entropy


@dataclass(frozen=True, slots=True)
class KeptSets:
    """The sampling sets of M tokens, rebuilt from the learner's own logits.

    `order` int64 [M, k] are the ids of the k likeliest tokens, likeliest first, k at least the
    size of the largest set; `outside` bool [M, k] says which are beyond a row's own size. The
    sampled token is at `place` int64 [M], within the set; `forced` bool [M] says whether it had to
    be put there, in place of the smallest.
    """

    order: Tensor
    outside: Tensor
    place: Tensor
    forced: Tensor


@torch.no_grad()
def kept_sets(logits: Tensor, ids: Tensor, kept: Tensor, width: int) -> KeptSets:
    """The sets that `token_logprobs` describes.

    Args:
        logits: [M, V].
        ids: The sampled tokens, int64 [M].
        kept: Sizes of their sets, int64 [M].
        width: k of the result, at least the largest size.
    """
    largest, order = logits.topk(width, dim=-1)
    outside = torch.arange(order.shape[-1], device=order.device) >= kept[:, None]
    is_sampled = (order == ids[:, None]) & ~outside
    last = kept[:, None] - 1
    # Equal logits are interchangeable: the engine may have kept another one of them.
    forced = (logits.gather(-1, ids[:, None]) < largest.gather(-1, last)).squeeze(-1)
    held = is_sampled.any(dim=-1, keepdim=True)
    order = order.scatter(-1, last, torch.where(held, order.gather(-1, last), ids[:, None]))
    place = torch.where(held, is_sampled.int().argmax(dim=-1, keepdim=True), last).squeeze(-1)
    return KeptSets(order, outside, place, forced)


def kept_logprobs(values: Tensor, sets: KeptSets, temperature: float) -> TokenLogprobs:
    """Log-probabilities [M] of the sampled tokens, differentiable in `values`.

    Args:
        values: Logits at the tokens of `sets.order`, [M, k].
        sets: The sampling sets.
        temperature: Above 0.
    """
    values = values.float()
    scaled = (values - values.detach().amax(dim=-1, keepdim=True)) / temperature
    inside = scaled.masked_fill(sets.outside, -torch.inf)
    logprobs = scaled.gather(-1, sets.place[:, None]).squeeze(-1) - inside.logsumexp(dim=-1)
    return TokenLogprobs(logprobs, sets.forced, entropy(inside.detach(), 1.0))


def full_logprobs(logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
    """Log-probabilities [...] of `ids` [...] under the softmax of `logits` [..., V] / temperature.

    Differentiable in `logits`; temperature above 0.
    """
    scaled = scale(logits, temperature)
    return scaled.gather(-1, ids[..., None]).squeeze(-1) - scaled.logsumexp(dim=-1)


_ENTROPY_ROWS = 256


@torch.no_grad()
def entropy(logits: Tensor, temperature: float) -> Tensor:
    """Entropy [...] of the softmax of `logits` [..., V] / temperature, -sum(p log p), in nats.

    A token with logit -inf is not in the distribution. Computed some rows at a time, so that what
    is held besides the logits stays small.
    """
    parts = []
    for part in torch.split(logits.reshape(-1, logits.shape[-1]), _ENTROPY_ROWS):
        logprobs = scale(part, temperature).log_softmax(dim=-1)
        parts.append(torch.special.entr(logprobs.exp()).sum(dim=-1))
    return torch.cat(parts).reshape(logits.shape[:-1])
