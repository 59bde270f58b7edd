"""A GGUF file, written here with GGUF's own writer, loads as the model that was put into it."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tests.support.models import MERGES, tiny_model, tiny_tokenizer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from antiphon.services.common.models import (
    encode_prompt,
    end_token_ids,
    load_model,
    load_tokenizer,
)


def write_gguf(path: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Writes a tied Llama in float32; rotary halves interleaved, as the format wants them."""
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda kv: kv[1])]
    control = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([control[t not in tokenizer.all_special_tokens] for t in tokens])
    writer.add_token_merges([" ".join(merge) for merge in MERGES])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        array = tensor.numpy()
        for part, count in heads.items():
            if part in name:
                halves = array.reshape(count, 2, -1, array.shape[-1])
                array = halves.swapaxes(1, 2).reshape(array.shape)
        short = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(short, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    tokenizer = tiny_tokenizer(folder / "source", kind="bytes")
    model = tiny_model(tokenizer, seed=3)
    write_gguf(folder / "tiny.gguf", model, tokenizer)
    model.save_pretrained(folder / "source")
    return folder / "tiny.gguf"


def test_a_gguf_file_gives_the_same_logits_prompts_and_ends(gguf_file: Path) -> None:
    source = gguf_file.parent / "source"
    wanted, own_tokenizer = load_model(source, dtype=torch.float32), load_tokenizer(source)
    for name in (gguf_file, str(gguf_file)):
        model, tokenizer = load_model(name, dtype=torch.float32), load_tokenizer(name)
        ids = encode_prompt(tokenizer, "the dragon 🐉 again")
        assert ids == encode_prompt(own_tokenizer, "the dragon 🐉 again")
        with torch.no_grad():
            logits, wanted_logits = (m(torch.tensor([ids])).logits for m in (model, wanted))
        torch.testing.assert_close(logits, wanted_logits)
        assert end_token_ids(model, tokenizer) == (own_tokenizer.eos_token_id,)


def test_what_came_from_a_gguf_file_can_be_saved_and_started_without_weights(
    gguf_file: Path, tmp_path: Path
) -> None:
    model = load_model(gguf_file.parent, dtype=torch.float32, gguf_file=gguf_file.name)
    model.save_pretrained(tmp_path)
    saved = load_model(tmp_path, dtype=torch.float32)
    assert all(
        torch.equal(a, b) for a, b in zip(saved.parameters(), model.parameters(), strict=True)
    )
    empty = load_model(gguf_file, dtype=torch.float32, weights=False)
    shapes = [{n: t.shape for n, t in m.state_dict().items()} for m in (empty, model)]
    assert shapes[0] == shapes[1]
