"""docs/engines.md says of each engine what works on it, and it is so."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.services.generation.engines.served import (
    REPOSITORY,
    Served,
    on_running_tgi,
    on_tgi,
    on_transformers,
    on_vllm,
)
from tests.integration.services.generation.engines.test_openai import options, running
from tests.integration.services.generation.harness import replica
from tests.support.tgi.server import Control

from antiphon.clients.types import FieldError, ModelInfo, PushKind, TensorDtype
from antiphon.learner.weights.connect import Needs, check_fit

Folders = Callable[..., Path]


@asynccontextmanager
async def on_openai(folder: Path, _control: Control) -> AsyncGenerator[Served]:
    with running() as server:
        async with replica(folder, **options(server)) as r:
            yield Served(r.client, folder, "run", 0, 0.0)


ENGINES = {
    "`transformers`": on_transformers,
    "`vllm`": on_vllm,
    "`tgi`": on_tgi,
    "`tgi` by address": on_running_tgi,
    "`openai`": on_openai,
}
MARKS = {"`vllm`": pytest.mark.vllm}


def documented(engine: str) -> dict[str, bool]:
    """The column of an engine in the second table: what works."""
    lines = (REPOSITORY / "docs" / "engines.md").read_text().splitlines()
    start = lines.index(next(line for line in lines if line.startswith("What works")))
    rows = [line.strip("| ").split(" | ") for line in lines[start:] if line.startswith("| ")]
    place = rows[0].index(engine) + 1
    works: dict[str, bool] = {}
    for row in rows[1:12]:
        assert row[place].startswith(("yes", "no"))
        works[row[0]] = row[place].startswith("yes")
    return works


def measured(info: ModelInfo) -> dict[str, bool]:
    """What the learner lets a run do on it."""
    needs = Needs(0, info.vocabulary_size, None, full_logprobs=False)

    def fits(**more: bool) -> bool:
        try:
            check_fit(info, replace(needs, **more), "here:1")
        except FieldError:
            return False
        return True

    def delta(dtype: TensorDtype) -> bool:
        can = info.capabilities
        return PushKind.DELTA in can.push_kinds and dtype in can.delta_dtypes

    return {
        "frozen agents, evaluation": fits(trained=False),
        "training": fits(),
        "training a LoRA adapter": fits(adapter=True),
        'deltas, with `wire_dtype = "bfloat16"`': delta(TensorDtype.BFLOAT16),
        'deltas, with `wire_dtype = "float32"`': delta(TensorDtype.FLOAT32),
        '`conversation = "append"`': fits(appends=True),
        '`logprob_support = "full"`': fits(full_logprobs=True),
        "reference KL in the returns, `max_staleness` 0": fits(),
        "reference KL in the returns, `max_staleness` above 0": fits(return_kl_ahead=True),
        "reference KL as a loss term": fits(),
        "a repeated batch is the same bit for bit": info.capabilities.seeds,
    }


@pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=MARKS.get(name, ())) for name in ENGINES]
)
async def test_what_is_said_to_work_works_and_nothing_else(
    engine: str, tiny_folders: Folders, tmp_path: Path
) -> None:
    folder = tiny_folders(seed=1, kind="bytes", add_bos=True, two_ends=True, head_size=32)
    async with ENGINES[engine](folder, Control(tmp_path / "control")) as served:
        info = await served.info()
    assert info.engine in engine
    assert measured(info) == documented(engine)
