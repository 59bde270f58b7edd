"""What every test shares: a quiet environment and tiny models made once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before torch or tokenizers are imported: two spinning thread pools on two cores take ten times
# as long, a fork after tokenizers' threads have started may hang, no test may reach for a hub.
# Libraries keep their log lines to themselves.
os.environ.update(
    OMP_NUM_THREADS="1",
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    TRANSFORMERS_VERBOSITY="error",
    GRPC_VERBOSITY="ERROR",
)

import pytest
from tests.support.processes import Processes


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_folder(**options)` of tests.support.models, made once for each set of options."""
    from tests.support.models import tiny_folder

    made: dict[tuple[tuple[str, Any], ...], Path] = {}

    def folder(**options: Any) -> Path:
        key = tuple(sorted(options.items()))
        if key not in made:
            made[key] = tiny_folder(tmp_path_factory.mktemp("tiny"), **options)
        return made[key]

    return folder


@pytest.fixture(scope="session")
def tiny_model_folder(tiny_folders: Callable[..., Path]) -> Path:
    """A tiny model with a word tokenizer, tied head, seed 0."""
    return tiny_folders(seed=0)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Starts `antiphon` processes; at the end none of them, nor a child of one, is left."""
    with Processes(tmp_path) as started:
        yield started
