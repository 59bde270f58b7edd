"""What a service knows itself of a model that another program runs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from antiphon.clients.types import FieldError, Prompt, TensorSpec, TokenIds
from antiphon.services.common.lora import SCALING, A, check_adapter, is_adapter_tensor
from antiphon.services.common.models import (
    context_length,
    encode_text,
    end_token_ids,
    load_tokenizer,
    reading,
    render_chat,
    tokenizer_fingerprint,
)
from antiphon.services.common.tensors import tensor_shapes, wire_tensors
from antiphon.services.generation.codec import Codec

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class UntiedHead:
    """Names of a head's weights and of the embedding's, which are the same numbers."""

    head: str
    embedding: str


def architecture(source: str, *, tied: bool = True) -> PreTrainedModel:
    """A model's layers without any weights, for names and shapes.

    Args:
        source: Folder or hub name.
        tied: False parts a head that shares the embedding's weights.

    Raises:
        FieldError: `source` is no folder or hub name with the config of a causal language model.
    """
    with reading(source):
        config = AutoConfig.from_pretrained(source)
        if not tied:
            config.get_text_config().tie_word_embeddings = False
            config.tie_word_embeddings = False
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        model.tie_weights()
        with contextlib.suppress(OSError):  # Where it has none, the config's end tokens count.
            model.generation_config = GenerationConfig.from_pretrained(source)
    return model


class ServedModel:
    """Tokenizer, limits, tensor names and end tokens of a model.

    Args:
        source: A folder or hub name.
        tokenizer: Where the tokenizer is, if not there.
    """

    def __init__(self, source: str, tokenizer: str | None = None) -> None:
        self.source = source
        self.tokenizer_source = tokenizer or source
        self.model = architecture(source)
        self.tokenizer = load_tokenizer(self.tokenizer_source)
        head = self.model.get_output_embeddings()
        config = self.model.config.get_text_config()
        self.vocabulary_size = int(config.vocab_size if head is None else head.weight.shape[0])
        self.end_ids = end_token_ids(self.model, self.tokenizer)
        self.context_length = context_length(self.model.config)
        self.codec = Codec(self.tokenizer, self.vocabulary_size, self.context_length)
        self.fingerprint = tokenizer_fingerprint(self.tokenizer)
        self.tensor_shapes: Mapping[str, tuple[int, ...]] = tensor_shapes(wire_tensors(self.model))

    def untied_head(self, model: PreTrainedModel) -> UntiedHead | None:
        """What an architecture that is not tied has beyond this one; None where that is nothing."""
        more = set(wire_tensors(model)) - set(self.tensor_shapes)
        if not more:
            return None
        names = {id(module): name for name, module in model.named_modules()}
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        return UntiedHead(f"{names[id(head)]}.weight", f"{names[id(embedding)]}.weight")

    def check_adapter(self, specs: Sequence[TensorSpec], field: str) -> None:
        """Checks that an adapter fits, and that it has one rank for all its layers.

        Raises:
            FieldError: Naming what does not fit.
        """
        adapter = [spec for spec in specs if is_adapter_tensor(spec.name)]
        check_adapter(self.model, ((spec.name, spec.shape) for spec in specs), field)
        ranks = {spec.shape[0] for spec in adapter if spec.name.endswith(A)}
        scalings = {spec.checksum for spec in adapter if spec.name.endswith(SCALING)}
        if len(ranks) > 1 or len(scalings) > 1:
            raise FieldError(
                field,
                f"an adapter of the ranks {sorted(ranks)} and {len(scalings)} scalings",
                "one rank and one scaling for all layers: this engine's adapters have one",
            )

    def text_of(self, prompt: Prompt, ids: tuple[int, ...], field: str) -> str:
        """The text that a server makes these ids of, where it always adds special tokens.

        Args:
            prompt: Text or chat.
            ids: What it is to become.
            field: Where it stands, for the message.

        Raises:
            FieldError: It is given as token ids, or no text becomes those ids.
        """
        if isinstance(prompt, TokenIds):
            raise FieldError(
                field,
                f"{len(ids)} token ids",
                "text or chat messages: this engine takes text only",
            )
        text = prompt if isinstance(prompt, str) else render_chat(self.tokenizer, prompt)
        begin = self.tokenizer.bos_token or ""
        for candidate in (text, text.removeprefix(begin)):
            if tuple(encode_text(self.tokenizer, candidate, special=True)) == ids:
                return candidate
        raise FieldError(
            field,
            f"a {'text' if isinstance(prompt, str) else 'chat'} of {len(ids)} tokens",
            "one that stays itself when the server adds the tokenizer's special tokens, which it "
            "always does",
        )
