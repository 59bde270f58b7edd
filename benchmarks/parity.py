"""CoMLRL 1.4.3 and antiphon on the same completions and rewards, number by number.

python -m benchmarks.parity      (or: make bench-parity)

CoMLRL runs in an environment of its own (`benchmarks/peer.py`). Writes
benchmarks/results/parity.json and docs/parity.md, prints a table, and exits 1 where a row does
not hold.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.parity_parts import (
    cases,
    models,
    our_evaluation,
    our_faults,
    our_logprobs,
    our_run,
    our_training,
    relations,
)
from benchmarks.parity_parts.page import page, terminal
from benchmarks.parity_parts.rows import Row, largest_by_name, machine, rows
from benchmarks.peer import ROOT, run_peer
from safetensors.torch import load_file

RESULTS = ROOT / "benchmarks" / "results" / "parity.json"
PAGE = ROOT / "docs" / "parity.md"


def grid(told: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Differences over the grid; trees of one shape are grown once."""
    tokenizer = models.tokenizer()
    grown: dict[cases.Case, Any] = {}
    for case in cases.grid():
        shape = replace(case, mode="mean", normalize=False)
        ran = our_run.run(case, tokenizer=tokenizer, roots=grown.get(shape))
        grown[shape] = ran.roots
        yield from relations.compare(case, told[case.name], ran.told())
        if case == shape and case.joint_mode == "aligned":
            again = our_run.run(
                case, discount=relations.DISCOUNT, tokenizer=tokenizer, roots=ran.roots
            )
            yield from relations.compare_discount(told[case.name], again.told(), case)


def measure(folder: Path) -> list[Row]:
    """Run both sides, exchanging files in `folder`."""
    for agent in range(3):
        models.folder(folder, agent)
    scenario, right = our_logprobs.scenario(folder)
    (folder / "scenario.json").write_text(json.dumps(scenario))
    run_peer("benchmarks.parity_parts.comlrl_main", str(folder))
    told = json.loads((folder / "comlrl.json").read_text())
    tensors = load_file(folder / "comlrl.safetensors")
    differences = largest_by_name(
        [
            *grid(told["grid"]),
            *our_evaluation.evaluations(told["evaluations"]),
            *our_training.training(folder, told["training"], tensors),
            *our_training.half_dead(folder, tensors),
            *our_training.reference_kl(folder, told["reference_kl"]),
            *our_training.metrics(told["metrics"]),
        ]
    )
    ours = our_faults.run(folder, scenario)
    return rows(differences, told["faults"], ours, right, machine(torch.__version__))


def main() -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        found = measure(Path(directory))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(found), encoding="utf-8")
    print(terminal(found))
    return 0 if all(row["holds"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
