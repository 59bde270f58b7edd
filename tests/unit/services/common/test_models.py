"""Loading models and tokenizers, and encoding prompts."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.models import SECOND_END, tiny_model, tiny_tokenizer
from transformers import GPT2Config, LlamaConfig, MambaConfig

from antiphon.clients.types import ChatMessage, FieldError
from antiphon.services.common.models import (
    context_length,
    encode_chat,
    encode_prompt,
    encode_text,
    end_token_ids,
    load_model,
    load_tokenizer,
    tokenizer_fingerprint,
)

Folders = Callable[..., Path]


def test_a_folder_loads_with_its_weights_or_as_architecture_only(tiny_folders: Folders) -> None:
    folder = tiny_folders(seed=3, two_ends=True)
    whole = load_model(folder, dtype=torch.float32)
    empty = load_model(folder, dtype=torch.bfloat16, weights=False)
    assert not whole.training
    assert not empty.training
    saved, built = whole.state_dict(), empty.state_dict()
    assert {k: v.shape for k, v in saved.items()} == {k: v.shape for k, v in built.items()}
    assert {v.dtype for v in built.values()} == {torch.bfloat16}
    assert not any(bool(tensor.any()) for tensor in built.values())
    assert all(bool(tensor.any()) for tensor in saved.values())
    derived = dict(empty.named_buffers())
    assert derived.keys() == dict(whole.named_buffers()).keys()
    for name, buffer in whole.named_buffers():
        torch.testing.assert_close(derived[name].float(), buffer, atol=1e-2, rtol=0)
    assert empty.lm_head.weight is empty.model.embed_tokens.weight


@pytest.mark.parametrize("weights", [True, False])
def test_end_ids_of_generation_config_config_and_tokenizer_all_count(
    tiny_folders: Folders, weights: bool
) -> None:
    """L3: every end-of-sequence id that a model ships ends its completions."""
    folder = tiny_folders(seed=0, two_ends=True)
    model = load_model(folder, dtype=torch.float32, weights=weights)
    tokenizer = load_tokenizer(folder)
    second = tokenizer.convert_tokens_to_ids(SECOND_END)
    assert end_token_ids(model, tokenizer) == tuple(sorted({tokenizer.eos_token_id, second}))
    model.config.eos_token_id = 7
    model.generation_config.eos_token_id = [9, second]
    assert end_token_ids(model, tokenizer) == tuple(sorted({tokenizer.eos_token_id, second, 7, 9}))
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    assert end_token_ids(model, tokenizer) == (tokenizer.eos_token_id,)


def test_context_length_is_read_whatever_the_architecture_calls_it() -> None:
    assert context_length(LlamaConfig(max_position_embeddings=77)) == 77
    assert context_length(GPT2Config(n_positions=55)) == 55
    with pytest.raises(FieldError, match="max_position_embeddings"):
        context_length(MambaConfig())


def test_special_tokens_are_added_once_whether_or_not_the_text_brings_them(tmp_path: Path) -> None:
    """L14: a prompt that was templated with its own begin token gets no second one."""
    tokenizer = tiny_tokenizer(tmp_path, kind="bytes", add_bos=True)
    bos = tokenizer.bos_token_id
    bare = encode_prompt(tokenizer, "the dragon")
    templated = encode_prompt(tokenizer, f"{tokenizer.bos_token}the dragon")
    assert bare == templated
    assert bare.count(bos) == 1
    inside = encode_prompt(tokenizer, f"the {tokenizer.bos_token} dragon")
    assert inside[0] == bos
    assert inside.count(bos) == 2


def test_a_tokenizer_that_adds_nothing_encodes_the_text_alone(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path, kind="words")
    words = ["red", "one", "cat"]
    assert encode_prompt(tokenizer, " ".join(words)) == tokenizer.convert_tokens_to_ids(words)
    with_end = f"red {tokenizer.eos_token} {tokenizer.pad_token} cat"
    assert encode_prompt(tokenizer, with_end) == [
        tokenizer.convert_tokens_to_ids("red"),
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
        tokenizer.convert_tokens_to_ids("cat"),
    ]


def test_chat_goes_through_the_template_once(tmp_path: Path) -> None:
    """L14: the template's own special tokens are the only ones."""
    tokenizer = tiny_tokenizer(tmp_path, kind="words", add_bos=True)
    tokenizer.chat_template = (
        "{{ bos_token }} {% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
        "{% if add_generation_prompt %}answer{% endif %}"
    )
    ids = encode_chat(tokenizer, (ChatMessage("cat", "red two"), ChatMessage("dog", "one")))
    words = [tokenizer.bos_token, "cat", "red", "two", "dog", "one", "answer"]
    assert ids == tokenizer.convert_tokens_to_ids(words)
    tokenizer.chat_template = None
    with pytest.raises(FieldError, match="chat template"):
        encode_chat(tokenizer, (ChatMessage("cat", "red"),))


def test_encoding_leaves_a_tokenizer_without_pad_token_as_it_was(tmp_path: Path) -> None:
    """L15: no pad token is needed, and none is put into the user's object."""
    tokenizer = tiny_tokenizer(tmp_path, kind="bytes", pad=False)
    tokenizer.padding_side = "right"

    def state() -> dict[str, Any]:
        return {
            "specials": copy.deepcopy(tokenizer.special_tokens_map),
            "side": (tokenizer.padding_side, tokenizer.truncation_side),
            "backend": tokenizer.backend_tokenizer.to_str(),
            "length": len(tokenizer),
        }

    before = state()
    assert encode_prompt(tokenizer, "the dragon")
    assert encode_chat(tokenizer, (ChatMessage("user", "hello"),))
    tokenizer_fingerprint(tokenizer)
    end_token_ids(tiny_model(tokenizer, 0), tokenizer)
    assert state() == before
    assert tokenizer.pad_token is None


def test_fingerprint_tells_vocabulary_special_tokens_and_template_apart(tmp_path: Path) -> None:
    first = tiny_tokenizer(tmp_path / "a")
    same = load_tokenizer(tmp_path / "a")
    assert tokenizer_fingerprint(first) == tokenizer_fingerprint(same)
    assert len(tokenizer_fingerprint(first)) == 32
    others = [
        tiny_tokenizer(tmp_path / "b", kind="bytes"),
        tiny_tokenizer(tmp_path / "c", pad=False),
        tiny_tokenizer(tmp_path / "d", words=["x", "y"]),
    ]
    same.chat_template = "{{ messages }}"
    fingerprints = {tokenizer_fingerprint(t) for t in (first, same, *others)}
    assert len(fingerprints) == 5


def test_weights_that_are_pickled_are_not_loaded(tiny_folders: Folders, tmp_path: Path) -> None:
    """Loading them would run what is in them."""
    folder = tmp_path / "pickled"
    shutil.copytree(tiny_folders(), folder)
    model = load_model(folder, dtype=torch.float32)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(FieldError, match="safetensors"):
        load_model(folder, dtype=torch.float32)


def test_a_text_that_is_far_too_long_is_not_encoded_to_its_end(tmp_path: Path) -> None:
    """L12: megabytes would take minutes, and fit as little."""
    tokenizer = tiny_tokenizer(tmp_path, kind="bytes")
    text = "the answer and the " * 2_000
    some = encode_text(tokenizer, text, enough=32)
    assert 32 < len(some) < 2000
    assert some == encode_text(tokenizer, text)[: len(some)]
    assert len(encode_prompt(tokenizer, text, enough=32)) > 32


def test_a_long_text_of_few_tokens_is_encoded_as_it_is(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path, kind="words")
    text = "red" + " " * 10_000 + "blue"
    assert encode_text(tokenizer, text, enough=4) == encode_text(tokenizer, text)
    assert len(encode_text(tokenizer, text, enough=4)) == 2
