"""S17: damaged checkpoints, models and stored pushes are refused, and nothing in them is run."""

from __future__ import annotations

import asyncio
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.fuzz.damage import INPUTS, damaged_files
from tests.integration.services.generation.harness import Push, push_of, replica
from tests.support.models import tiny_folder
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from antiphon.clients.types import FieldError
from antiphon.learner.checkpoints.state_files import packed, write_tree
from antiphon.learner.checkpoints.store import CheckpointStore, DamagedError, read_checkpoint
from antiphon.learner.config.run_file import load_run_config
from antiphon.learner.distributed import state
from antiphon.learner.run.toml_run import setup_from_config
from antiphon.services.common.errors import StartError
from antiphon.services.common.weights_store import WeightsStore
from antiphon.services.generation.serving import GenerationOptions, load_engine

SLOW_INPUTS = INPUTS // 16
"""Of what takes a good part of a second."""
ROOM_BYTES = 4 << 30
"""That a damaged model may ask for; a number in its config may be any."""


class Part:
    """A component whose state has every kind of value."""

    STATE = {  # noqa: RUF012
        "weights": torch.arange(64, dtype=torch.float32),
        "moments": [torch.ones(3, 5), {"step": 7, "name": "adam"}],
        "nothing": None,
    }

    def state_dict(self) -> dict[str, Any]:
        return self.STATE

    def load_state_dict(self, state: Any) -> None:
        raise NotImplementedError


class PartOfRanks(Part):
    """The same of a policy that ranks hold: each writes its rows."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh

    def write_state(self, folder: Path, name: str) -> None:
        tree, tensors = packed(self.STATE, name)
        parted: dict[str, Tensor] = {
            key: distribute_tensor(tensor, self._mesh, [Shard(0)])
            for key, tensor in tensors.items()
        }
        state.save(folder / name, parted, self._mesh.get_group())
        write_tree(folder, name, tree)

    def read_state(self, folder: Path, name: str) -> None:
        raise NotImplementedError


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Of one rank."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield DeviceMesh("cpu", [0])
    finally:
        distributed.destroy_process_group()


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_a_damaged_checkpoint_is_refused_or_gives_just_what_was_saved(
    tmp_path: Path, mesh: DeviceMesh
) -> None:
    """S12, S17: garbage is not loaded, of one process or of ranks."""
    about = {"run_id": "run", "incarnation": 1, "prompts": 3}
    parts = {"policy_0": Part(), "policy_1": PartOfRanks(mesh)}
    saved = CheckpointStore(tmp_path).save(about, parts, total_limit=None)
    good = contents(saved.path)
    assert any(name.startswith("policy_1/shard-") for name in good)
    refused = 0
    for damaged in damaged_files("checkpoint", good):
        (saved.path / damaged.file).write_bytes(damaged.data)
        with damaged.kept_if_it_fails():
            try:
                found = read_checkpoint(saved.path)
                assert {name: found.about[name] for name in about} == about
                assert same(found.state("policy_0"), Part.STATE)
                assert same(found.state("policy_1"), Part.STATE)
            except DamagedError:
                refused += 1
        (saved.path / damaged.file).write_bytes(good[damaged.file])
    assert refused > INPUTS // 2


@contextmanager
def little_memory() -> Iterator[None]:
    """Refuse this process more than `ROOM_BYTES` beside what it has."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    most = psutil.Process().memory_info().vms + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


RUN = """
[[agents]]
model = "{model}"
addresses = ["localhost:50051"]
[reward]
address = "localhost:50061"
[dataset]
prompts = ["a task"]
[magrpo]
num_turns = 1
"""


def as_service(model: Path) -> None:
    load_engine(GenerationOptions(model=str(model), device="cpu"))


def as_tokenizer(model: Path) -> None:
    """As the service does whose engine is another program."""
    load_engine(
        GenerationOptions(
            model=str(model), engine="openai", engine_address="http://localhost:8000/v1"
        )
    )


def as_learner(model: Path) -> None:
    file = model.parent / "run.toml"
    file.write_text(RUN.format(model=model))
    setup_from_config(load_run_config(file))


@pytest.mark.parametrize("load", [as_service, as_tokenizer, as_learner])
def test_a_damaged_model_is_loaded_or_refused_in_a_line(
    tmp_path: Path, load: Callable[[Path], None]
) -> None:
    """S17"""
    good = contents(tiny_folder(tmp_path / "good"))
    model, refused = tmp_path / "model", 0
    for damaged in damaged_files("model", good, SLOW_INPUTS):
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(tmp_path / "good", model)
        (model / damaged.file).write_bytes(damaged.data)
        with damaged.kept_if_it_fails(), little_memory():
            try:
                load(model)
            except (StartError, FieldError):
                refused += 1
    assert refused > SLOW_INPUTS // 4


@dataclass
class CountedPush(Push):
    """Notes each tensor that is read to be sent."""

    sent: list[int] = field(default_factory=list)

    def read(self, index: int) -> memoryview:
        self.sent.append(index)
        return super().read(index)


async def test_a_damaged_push_in_a_store_is_refused_and_sent_instead(tmp_path: Path) -> None:
    """S15, S17: wrong weights are never applied."""
    folder = tiny_folder(tmp_path / "model")
    (tmp_path / "store").mkdir()
    store = WeightsStore(f"file://{tmp_path / 'store'}")
    push = push_of(folder, 1)
    stored = store.write(push.header, push.read)
    good = {"push": b"".join(push.tensors)}
    async with replica(folder, store=store) as served:
        for version, damaged in enumerate(damaged_files("stored_push", good, SLOW_INPUTS), start=1):
            await asyncio.to_thread(Path(store.path(push.header)).write_bytes, damaged.data)
            pushed = CountedPush(replace(push.header, version=version), push.tensors)
            with damaged.kept_if_it_fails():
                result = await served.push(pushed, stored=stored)
                assert (result.weights_version, result.digest) == (version, push.header.digest)
                # What lies behind the bytes of the push is not read.
                unharmed = damaged.data.startswith(good["push"])
                assert bool(pushed.sent) != unharmed
