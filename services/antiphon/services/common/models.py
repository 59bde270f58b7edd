"""Models and tokenizers as Hugging Face knows them: loading, their limits, encoding prompts."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.initialization import no_init_weights

from antiphon.clients.types import Chat, FieldError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_CONTEXT_ATTRIBUTES = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_CHARACTERS_PER_TOKEN = 16
_CUT_TOKENS = 64
"""Tokens that a text may have more of because it was cut in the middle of a word."""


_WANTED = (
    "a folder with config.json, safetensors and a tokenizer, a .gguf file, or a name that the "
    "model hub knows"
)


@contextmanager
def reading(source: str | Path) -> Iterator[None]:
    """Read a model or tokenizer within; the libraries raise whatever damaged files lead them to.

    Raises:
        FieldError: It cannot be read; says why.
        ImportError: A package is missing.
    """
    if _is_path(str(source)) and not os.path.exists(source):  # noqa: PTH110  (never raises)
        raise FieldError(f"model {source}", "no such file or folder", _WANTED)
    try:
        yield
    except (FieldError, ImportError):
        raise
    except Exception as error:
        raise FieldError(f"model {source}", f"{type(error).__name__}: {error}", _WANTED) from error


def _is_path(source: str) -> bool:
    """Whether this cannot be a hub's name, which is `name` or `owner/name`."""
    return source.startswith(("/", ".", "~")) or source.count("/") > 1


def _location(source: str | Path, gguf_file: str | None) -> tuple[str, dict[str, Any]]:
    """Folder or hub name, and the keyword that names the GGUF file within it."""
    path = Path(source)
    if gguf_file is None and path.suffix == ".gguf" and path.is_file():
        return str(path.parent), {"gguf_file": path.name}
    return str(source), {} if gguf_file is None else {"gguf_file": gguf_file}


def load_model(
    source: str | Path,
    *,
    dtype: torch.dtype,
    weights: bool = True,
    gguf_file: str | None = None,
) -> PreTrainedModel:
    """A causal language model in evaluation mode, from safetensors or GGUF.

    Args:
        source: Hub name, folder, or path of a `.gguf` file.
        dtype: Number format of its weights.
        weights: False builds the architecture only, with zeros for weights.
        gguf_file: A GGUF file within `source`.

    Raises:
        FieldError: It cannot be read.
    """
    where, keywords = _location(source, gguf_file)
    if weights:
        # Other formats are pickled: loading them runs what is in them.
        safe = keywords or {"use_safetensors": True}
        with reading(source):
            model = AutoModelForCausalLM.from_pretrained(where, dtype=dtype, **safe)
    else:
        model = load_architecture(source, dtype=dtype, gguf_file=gguf_file)
        for parameter in model.parameters():
            parameter.data.zero_()
    if keywords:
        # The weights are plain numbers now: without this the model counts as quantised and
        # refuses to be saved.
        model.hf_quantizer = None
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
    return model.eval()


def load_architecture(
    source: str | Path, *, dtype: torch.dtype, gguf_file: str | None = None
) -> PreTrainedModel:
    """A causal language model whose weights are memory that nobody has written to yet.

    Pages that are never touched take no memory, so it costs next to nothing.

    Args:
        source: Hub name, folder, or path of a `.gguf` file.
        dtype: Number format of its weights.
        gguf_file: A GGUF file within `source`.

    Raises:
        FieldError: Its config cannot be read.
    """
    where, keywords = _location(source, gguf_file)
    with reading(source):
        config = AutoConfig.from_pretrained(where, **keywords)
        with no_init_weights():
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        # Tying is part of the initialisation that was left out.
        model.tie_weights()
        if (Path(where) / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(where)
    return model.eval()


def load_tokenizer(source: str | Path, *, gguf_file: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer that belongs to `source` (hub name, folder, or path of a `.gguf` file).

    Raises:
        FieldError: It cannot be read.
    """
    where, keywords = _location(source, gguf_file)
    with reading(source):
        return AutoTokenizer.from_pretrained(where, **keywords)


def end_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """All ids that end a completion: of generation config, config and tokenizer, ascending.

    Raises:
        FieldError: One of them names something else.
    """
    ids: set[int] = set()
    config = model.config.get_text_config()
    for holder in (model.generation_config, model.config, config, tokenizer):
        named = getattr(holder, "eos_token_id", None)
        if named is None:
            continue
        for one in named if isinstance(named, (list, tuple)) else [named]:
            if type(one) is not int:
                kind = type(holder).__name__
                raise FieldError("eos_token_id", f"{one!r} in the {kind}", "ids of tokens")
            ids.add(one)
    return tuple(sorted(ids))


def context_length(config: PreTrainedConfig) -> int:
    """Most tokens of prompt and completion together.

    Raises:
        FieldError: The config names no limit.
    """
    text = config.get_text_config()
    for name in _CONTEXT_ATTRIBUTES:
        value = getattr(text, name, None)
        if isinstance(value, int) and value > 0:
            return value
    raise FieldError(
        "config.max_position_embeddings",
        "nothing",
        f"a positive number under one of {', '.join(_CONTEXT_ATTRIBUTES)}",
    )


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> bytes:
    """SHA-256 of the tokenizer's vocabulary, special tokens and chat template, 32 bytes."""
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    parts = [
        sorted(tokenizer.get_vocab().items()),
        special,
        getattr(tokenizer, "chat_template", None),
    ]
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).digest()


def encode_text(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    *,
    special: bool = False,
    enough: int | None = None,
) -> list[int]:
    """Token ids of a text as it is.

    Args:
        tokenizer: The tokenizer.
        text: The text.
        special: Adds what the tokenizer puts around a text.
        enough: More tokens than anybody can use. Of a much longer text the ids of its beginning
            are given, more than `enough`: megabytes would take minutes. None for all of them.
    """

    def ids_of(some: str) -> list[int]:
        return list(tokenizer(some, add_special_tokens=special, verbose=False)["input_ids"])

    beginning = None if enough is None else text[: enough * _CHARACTERS_PER_TOKEN]
    if enough is not None and beginning is not None and len(beginning) < len(text):
        ids = ids_of(beginning)
        if len(ids) > enough + _CUT_TOKENS:
            return ids
    return ids_of(text)


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, text: str, *, enough: int | None = None
) -> list[int]:
    """Token ids of a prompt text, taken as it is (no chat template).

    The tokenizer's special tokens are added unless the text begins with those that it puts in
    front. `enough` is that of `encode_text`.
    """
    plain = encode_text(tokenizer, text, enough=enough)
    full = encode_text(tokenizer, text, special=True, enough=enough)
    prefix = _added_in_front(full, plain)
    return plain if prefix and plain[: len(prefix)] == prefix else full


def _added_in_front(full: list[int], plain: list[int]) -> list[int]:
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return full[:start]
    return []


def encode_chat(
    tokenizer: PreTrainedTokenizerBase, chat: Chat, *, enough: int | None = None
) -> list[int]:
    """Token ids of chat messages under the tokenizer's chat template, ready for an answer.

    No special tokens are added to those of the template. `enough` is that of `encode_text`.

    Raises:
        FieldError: The tokenizer has no chat template.
    """
    return encode_text(tokenizer, render_chat(tokenizer, chat), enough=enough)


def render_chat(
    tokenizer: PreTrainedTokenizerBase, chat: Chat, *, add_generation_prompt: bool = True
) -> str:
    """Chat messages as text under the tokenizer's chat template.

    Args:
        tokenizer: Holds the template.
        chat: The messages.
        add_generation_prompt: Whether the text goes on to where an answer begins.

    Raises:
        FieldError: The tokenizer has no chat template.
        jinja2.TemplateError: The template refuses the messages.
    """
    if getattr(tokenizer, "chat_template", None) is None:
        raise FieldError(
            "prompt.chat",
            f"{len(chat)} messages",
            "text or token ids: this model's tokenizer has no chat template",
        )
    messages = [{"role": message.role, "content": message.content} for message in chat]
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=add_generation_prompt
    )
    return str(text)
