"""A causal language model's forward over the completions of a micro-batch.

What a model can do is found out by trying it on a few tokens, once, and not by its name:

    the head apart     its logits are what its output embedding gives, as it is. Then the body
                       gives hidden states, and the head is applied to completion tokens alone
    shared prompts     told by a mask [B, 1, S, S] and position ids, the completions of one prompt
                       come out of one row as each of them does alone

Models with a soft cap or a scale on their logits have no head apart; those with recurrent layers,
with biases that count columns (ALiBi) or with kernels that take no such mask share no prompts; one
with a sliding window shares them up to the window. All of them train, at more cost. Where
gradients are taken in float32 on a CPU, two more are used (`lean`):

    leaner modules         norms, gated layers and embeddings (`antiphon.learner.policy.lean`)
    attention in blocks    of shared prompts (`antiphon.learner.policy.shared_attention`)
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from antiphon.learner.policy.adapters import base_of
from antiphon.learner.policy.lean import Lean
from antiphon.learner.policy.micro_batches import MicroBatch, collate, plain_row
from antiphon.learner.policy.shared_attention import SharedAttention

logger = logging.getLogger(__name__)

_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")
_REFUSALS = (
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    NotImplementedError,
    AssertionError,
)
"""What models raise that were given a mask which they cannot take."""


class Forward:
    """A model and what was found out of it.

    Attributes:
        model: A causal language model, in eval mode and on its device.
        head: Its output embedding where that is apart, else None.
        shared_up_to: Longest prompt and completion together of which the prompt may be shared.
        is_lean: Whether this is within `lean`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        accepted = inspect.signature(model.forward).parameters
        self._accepted = accepted.keys()
        self._open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
        self.head: nn.Module | None = None
        self.head = self._head_apart()
        self.is_lean = False
        self._lean = Lean(model)
        self._shared_attention: SharedAttention | None = None
        self.shared_up_to = _window(model) if self._shares_prompts() else 0

    @contextmanager
    def lean(self) -> Iterator[None]:
        """Within it, states and gradients are computed in leaner ways, to the same numbers.

        Gradients of parameters are dense when it ends.
        """
        shared = self._shared_attention
        with self._lean.used(), shared.in_blocks() if shared else nullcontext():
            self.is_lean = bool(self._lean)
            try:
                yield
            finally:
                self.is_lean = False

    def states(self, batch: MicroBatch) -> Tensor:
        """What `logits` makes the logits of the completions' tokens from, [K, H], with gradient."""
        columns, places = batch.input_ids.shape[1], batch.places
        inputs = batch.input_ids, batch.attention_mask, batch.position_ids
        in_blocks = self.is_lean and self._shared_attention and batch.attention_mask.ndim == 4
        more: dict[str, Any] = {"shared": batch.layout} if in_blocks else {}
        if self.head is not None:
            with _passing(self.head):
                states: Tensor = self._output(*inputs, **more)
            return states.flatten(0, 1).index_select(0, places)
        kept, at = torch.unique(places % columns, return_inverse=True)
        logits = self._output(*inputs, logits_to_keep=kept, **more)
        if logits.shape[1] == kept.numel():
            places = places // columns * kept.numel() + at
        return logits.flatten(0, 1).index_select(0, places)

    def logits(self, states: Tensor) -> Tensor:
        """Logits [..., V] of states [..., H]."""
        if self.head is None:
            return states
        logits: Tensor = self.head(states.to(next(self.head.parameters()).dtype))
        return logits

    @property
    def linear_head(self) -> Tensor | None:
        """The weights [V, H] of a head that is a float32 matrix product and no more, else None."""
        head = self.head
        if type(head) is not nn.Linear or head.bias is not None or "forward" in vars(head):
            return None
        return head.weight if head.weight.dtype == torch.float32 else None

    def _output(self, input_ids: Tensor, mask: Tensor, position_ids: Tensor, **more: Any) -> Tensor:
        if mask.ndim == 4:
            zeros = torch.zeros(mask.shape, dtype=_dtype(self.model), device=mask.device)
            mask = zeros.masked_fill(~mask, torch.finfo(zeros.dtype).min)
        else:
            mask = mask.long()
        inputs = {
            "input_ids": input_ids,
            "attention_mask": mask,
            "position_ids": position_ids,
            "use_cache": False,
            **more,
        }
        taken = {n: v for n, v in inputs.items() if self._open_ended or n in self._accepted}
        output: Tensor = self.model(**taken).logits
        return output

    @torch.no_grad()
    def _head_apart(self) -> nn.Module | None:
        """The output embedding, if the model gives out unchanged whatever comes from it."""
        embedding = getattr(base_of(self.model), "get_output_embeddings", None)
        head = embedding() if embedding is not None else None
        if not isinstance(head, nn.Module) or next(head.parameters(), None) is None:
            return None
        batch = collate([[plain_row((1, 0, 1), (0, 1))]], "sampled", _device(self.model))
        made: list[Tensor] = []

        def known(states: Tensor) -> Tensor:
            made.append(torch.linspace(-999.0, 999.0, states.numel(), device=states.device))
            made[-1] = made[-1].reshape(states.shape).to(states.dtype)
            return made[-1]

        inputs = batch.input_ids, batch.attention_mask, batch.position_ids
        try:
            with _calling(head, known):
                output = self._output(*inputs)
        except _REFUSALS as error:
            logger.info("%s: its head is not taken apart: %s", type(self.model).__name__, error)
            return None
        if len(made) != 1 or output.shape != made[0].shape or not torch.equal(output, made[0]):
            return None
        with _passing(head):
            states = self._output(*inputs)
        logits, wanted = head(states), self._output(*inputs)
        return head if logits.shape == wanted.shape and _close(logits, wanted) else None

    @torch.no_grad()
    def _shares_prompts(self) -> bool:
        """Whether completions in one row come out as each of them alone, to rounding."""
        name = type(self.model).__name__
        if not {"attention_mask", "position_ids"} <= self._accepted and not self._open_ended:
            return False
        if getattr(base_of(self.model), "_is_stateful", False):
            return False
        ids = [i % self._vocabulary() for i in (5, 3, 8, 1, 7, 2, 9, 4, 6, 0, 3, 5, 1)]
        rows = [plain_row(tuple(ids[:4]), tuple(part)) for part in (ids[4:8], ids[8:9], ids[9:])]
        device = _device(self.model)
        alone = torch.cat([self.states(collate([[row]], "sampled", device)) for row in rows])
        try:
            shared = self.states(collate([rows], "sampled", device))
        except _REFUSALS as error:
            logger.info("%s shares no prompts: %s", name, error)
            return False
        if not _close(shared, alone):
            logger.info("%s shares no prompts: its states are then others", name)
            return False
        self._attend_in_blocks(collate([rows], "sampled", device), alone)
        return True

    def _attend_in_blocks(self, batch: MicroBatch, wanted: Tensor) -> None:
        """Attend in blocks within `lean`, if states come out as wanted."""
        self._shared_attention = SharedAttention(self.model) or None
        try:
            with self.lean():
                same = _close(self.states(batch), wanted)
        except _REFUSALS as error:
            logger.info("%s attends in no blocks: %s", type(self.model).__name__, error)
            same = False
        if not same:
            self._shared_attention = None

    def _vocabulary(self) -> int:
        embedding = getattr(base_of(self.model), "get_input_embeddings", lambda: None)()
        return int(getattr(embedding, "num_embeddings", 2))


def _close(got: Tensor, wanted: Tensor) -> bool:
    """Whether all differences are rounding, next to the largest number."""
    off = (got - wanted).abs().max() / wanted.abs().max()
    return bool(off <= torch.finfo(wanted.dtype).eps ** 0.5)


def _device(model: nn.Module) -> torch.device:
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _dtype(model: nn.Module) -> torch.dtype:
    floating = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(floating, torch.float32)


def _window(model: nn.Module) -> int:
    """Tokens that every layer sees back to; without a window, as many as there are."""
    config = getattr(base_of(model), "config", None)
    text = getattr(config, "get_text_config", lambda: config)()
    sizes = [getattr(text, name, None) for name in _WINDOWS]
    return min((size for size in sizes if isinstance(size, int) and size > 0), default=sys.maxsize)


def _passing(head: nn.Module) -> AbstractContextManager[None]:
    """Within it, the head gives out what it gets, so the model gives its hidden states."""
    return _calling(head, lambda states: states)


@contextmanager
def _calling(module: nn.Module, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Within it, calling the module calls `forward`."""
    before = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before
