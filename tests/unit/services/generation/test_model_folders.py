"""Folders of versions that other programs load: whole or not there, and readable by older ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.support.models import SECOND_END, tiny_tokenizer

from antiphon.clients.types import LoadedWeights, TensorDtype
from antiphon.services.common.models import load_model, load_tokenizer
from antiphon.services.common.tensors import wire_tensors
from antiphon.services.generation.engines.model_folders import ModelFolders, adapter_of
from antiphon.services.generation.engines.served_model import ServedModel
from antiphon.services.generation.engines.stored_weights import StoredWeights

Folders = Callable[..., Path]
LOADED = LoadedWeights("run", 1, 3, b"\x01" * 32)


def test_a_version_is_a_model_with_every_end_token_and_no_other_generation_setting(
    tiny_folders: Folders, tmp_path: Path
) -> None:
    """L3: and the same weights, tokens and settings, under names that older programs read."""
    source = tiny_folders(seed=0, two_ends=True)
    weights = wire_tensors(load_model(source, dtype=torch.bfloat16))
    folder = ModelFolders(tmp_path / "work", ServedModel(str(source))).write(LOADED, weights, {})
    written = wire_tensors(load_model(folder, dtype=torch.bfloat16))
    assert written.keys() == weights.keys()
    assert all(torch.equal(written[name], weights[name]) for name in weights)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.get_vocab() == load_tokenizer(source).get_vocab()
    assert tokenizer.chat_template == load_tokenizer(source).chat_template
    config = json.loads((folder / "config.json").read_text())
    assert config["torch_dtype"] == config["dtype"] == "bfloat16"
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    assert config["tie_word_embeddings"]
    generation = json.loads((folder / "generation_config.json").read_text())
    ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(SECOND_END)]
    assert generation == {"eos_token_id": sorted(ends)}
    named = json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"]
    assert named == "PreTrainedTokenizerFast"


def test_an_untied_version_holds_the_head_as_a_tensor_of_its_own(
    tiny_folders: Folders, tmp_path: Path
) -> None:
    source = tiny_folders(seed=0)
    weights = wire_tensors(load_model(source, dtype=torch.float32))
    folders = ModelFolders(tmp_path / "work", ServedModel(str(source)), untied=True)
    written = wire_tensors(load_model(folders.write(LOADED, weights, {}), dtype=torch.float32))
    assert set(written) - set(weights) == {"lm_head.weight"}
    assert torch.equal(written["lm_head.weight"], weights["model.embed_tokens.weight"])


def test_a_tokenizer_of_its_own_is_the_one_that_is_written(
    tiny_folders: Folders, tmp_path: Path
) -> None:
    source = tiny_folders(seed=0)
    tiny_tokenizer(tmp_path / "other", words=("x", "y"))
    served = ServedModel(str(source), str(tmp_path / "other"))
    weights = wire_tensors(load_model(source, dtype=torch.float32))
    folder = ModelFolders(tmp_path / "work", served).write(LOADED, weights, {})
    assert "x" in load_tokenizer(folder).get_vocab()


def test_a_version_that_was_cut_off_is_not_there_and_goes_with_the_next_start(
    tiny_folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2: a folder appears by a rename, once everything in it is written."""
    source, work = tiny_folders(seed=0), tmp_path / "work"
    served = ServedModel(str(source))
    weights = wire_tensors(load_model(source, dtype=torch.float32))
    folders = ModelFolders(work, served)
    kept = folders.write(LOADED, weights, {})

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("antiphon.services.generation.engines.model_folders._write_json", full)
        with pytest.raises(OSError, match="no space"):
            folders.write(LoadedWeights("run", 1, 4, b"\x02" * 32), weights, {})
    assert list(work.glob("version-*")) == [kept]
    assert len(list(work.iterdir())) == 2
    ModelFolders(work, served)
    assert list(work.iterdir()) == [kept]


def test_stored_weights_are_read_as_they_were_written(
    tiny_folders: Folders, tmp_path: Path
) -> None:
    source = tiny_folders(seed=0)
    stored = StoredWeights(ModelFolders(tmp_path / "work", ServedModel(str(source)), untied=True))
    loaded = stored.start(str(source), TensorDtype.BFLOAT16)
    weights = wire_tensors(load_model(source, dtype=torch.bfloat16))
    assert loaded.digest
    read = stored.own_tensors()
    assert {spec.name for spec in stored.base} == set(weights) == set(read)
    assert all(torch.equal(read[name], weights[name]) for name in weights)
    assert stored.folder is not None
    assert adapter_of(stored.folder) is None


def test_a_temporary_folder_is_gone_once_it_is_closed(tiny_folders: Folders) -> None:
    source = tiny_folders(seed=0)
    folders = ModelFolders(None, ServedModel(str(source)))
    weights = wire_tensors(load_model(source, dtype=torch.float32))
    folder = folders.write(LOADED, weights, {})
    assert folder.is_dir()
    folders.close()
    assert not folder.parent.exists()


def test_no_name_from_the_wire_becomes_a_path(tiny_folders: Folders, tmp_path: Path) -> None:
    """A run's id and tensors' names may hold anything; the folder's name is of numbers only."""
    source, work = tiny_folders(seed=0), tmp_path / "inner" / "work"
    weights = wire_tensors(load_model(source, dtype=torch.float32))
    folders = ModelFolders(work, ServedModel(str(source)))
    before = {file for file in tmp_path.rglob("*") if work not in (file, *file.parents)}
    digest = bytes.fromhex("2e2e2f") * 10 + b"../"[:2]
    folder = folders.write(LoadedWeights("../../run", 1, 3, digest), weights, {})
    assert folder == work / f"version-1-3-{digest.hex()[:12]}"
    assert before | {work.parent} == {
        file for file in tmp_path.rglob("*") if work not in (file, *file.parents)
    } | {work.parent}
