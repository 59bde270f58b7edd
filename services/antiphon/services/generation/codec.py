"""Prompts to token ids and sampled ids to text, with one tokenizer shared by several threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphon.clients.types import FieldError, Prompt, TokenIds
from antiphon.services.common.models import encode_chat, encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Codec:
    """Encodes prompts and decodes completions.

    Args:
        tokenizer: Never changed; need not have a pad token.
        vocabulary_size: Width of the logits.
        context_length: More tokens than it no prompt can have; None where that is not known.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        vocabulary_size: int,
        context_length: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._enough = context_length
        self._vocabulary_size = vocabulary_size
        # A fast tokenizer fails where two threads use it at the same time.
        self._lock = threading.Lock()

    def encode(self, prompt: Prompt, field: str) -> tuple[int, ...]:
        """Token ids of a prompt: given ids as they are, text and chat as `models` says.

        Of a text that is far too long those of its beginning.

        Raises:
            FieldError: No tokens, or an id outside of the vocabulary.
        """
        if isinstance(prompt, TokenIds):
            ids = prompt.ids
        else:
            with self._lock:
                if isinstance(prompt, str):
                    ids = tuple(encode_prompt(self._tokenizer, prompt, enough=self._enough))
                else:
                    ids = tuple(encode_chat(self._tokenizer, prompt, enough=self._enough))
        if not ids:
            raise FieldError(field, "no tokens", "a prompt of at least one token")
        for position, token in enumerate(ids):
            if not 0 <= token < self._vocabulary_size:
                raise FieldError(
                    f"{field}.token_ids.ids[{position}]",
                    token,
                    f"an id of the vocabulary, 0 to {self._vocabulary_size - 1}",
                )
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a whole completion, without special tokens.

        Bytes that form no whole character, as where `max_new_tokens` cut one, are left out.
        """
        with self._lock:
            text = self._tokenizer.decode(
                list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        return str(text).replace(_REPLACEMENT, "")
