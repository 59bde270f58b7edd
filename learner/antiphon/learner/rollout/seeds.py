"""Seeds: a stable hash of what a completion is for, so that a run is the same wherever it runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from antiphon.clients.types import Phase


def stable_hash(*parts: int | str | Sequence[int]) -> int:
    """Hash parts to 64 bits, the same on every machine, version and process.

    The parts are written as JSON, so ``(1, 23)`` and ``(12, 3)`` differ, and so do ``1`` and
    ``"1"``.
    """
    text = json.dumps(
        [part if isinstance(part, (int, str)) else list(part) for part in parts],
        separators=(",", ":"),
    )
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def completion_seed(
    run_seed: int,
    phase: Phase,
    epoch: int,
    row: int,
    path: Sequence[int],
    agent: int,
    sample: int,
) -> int:
    """Derive the seed (uint64) that fixes every uniform number of one completion.

    Args:
        run_seed: `MAGRPOConfig.seed`.
        phase: Training or evaluation.
        epoch: Epoch, or number of the evaluation.
        row: Row of the dataset.
        path: Index of the joint action taken at each earlier turn; empty at the first turn.
        agent: Agent, from 0.
        sample: Index of the completion among its prompt's, from 0.
    """
    return stable_hash("completion", run_seed, phase.value, epoch, row, path, agent, sample)
