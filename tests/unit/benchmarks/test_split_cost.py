"""Both sides of the benchmark do the same work, as runs of a tiny model show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.seed_job_parts.job import Job
from benchmarks.split_cost import train

JOB = Job(prompts=1, num_turns=2, num_generations=2, max_new_tokens=6)


def test_one_process_does_what_services_do(tiny_model_folder: Path, tmp_path: Path) -> None:
    rows: dict[str, list[dict[str, Any]]] = {}
    for side in ("one_process", "services"):
        train(side, tiny_model_folder, tmp_path / side, JOB, 2)
        lines = (tmp_path / side / "run" / "metrics.jsonl").read_text().splitlines()
        rows[side] = [
            {n: v for n, v in json.loads(line).items() if n.endswith(("tokens", "reward_mean"))}
            for line in lines
        ]
    assert rows["one_process"] == rows["services"]
    assert all(len(row) >= 4 for row in rows["services"])
