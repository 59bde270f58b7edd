"""A cluster in simulation: measured here, held against real runs, then run to 1,000 replicas.

    make bench-cluster-sim
    python -m benchmarks.cluster_sim --again     with what the last one measured

First this machine measures what its processes, pushes, engine and update cost, and trains real jobs
at one to eight generation processes beside what the model says of them (seven minutes). Then the
model is run with these constants, and with GPUs as assumed in one table, up to 1,000 replicas and
70 billion parameters. Writes benchmarks/results/cluster_sim.json, docs/scale.svg, and the tables of
docs/scale.md and docs/what_to_run.md.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.cluster_sim_parts import hardware, page, plot, scale
from benchmarks.cluster_sim_parts.costs import ProcessCosts
from benchmarks.results import FOLDER, Row, machine, write

NAME = "cluster_sim"
DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("scale.md", "what_to_run.md")


def validated() -> dict[str, Any]:
    """This machine's constants, and how far the model is from real runs."""
    from benchmarks.cluster_sim_parts.validate import compared, validate

    constants, seconds = validate()
    return {
        "measured_on": machine(),
        "machine_constants": constants.constants(),
        "validation": compared(constants, seconds),
    }


def last_validated() -> dict[str, Any]:
    """The same by what the last result measured."""
    from benchmarks.cluster_sim_parts.validate import Machine, compared

    details = json.loads((FOLDER / f"{NAME}.json").read_text())["details"]
    constants = Machine.of(details["machine_constants"])
    seconds = {row["name"]: row["measured"] for row in details["validation"]}
    return {**details, "validation": compared(constants, seconds)}


def measured(constants: dict[str, Any]) -> scale.Measured:
    """What a larger cluster takes of this machine's constants.

    How much changes in a step, and how fast that is found, is what `bench-push-delta` last measured
    of SmolLM2-135M.
    """
    delta = json.loads((FOLDER / "push_delta.json").read_text())["details"]
    return scale.Measured(
        learner=ProcessCosts(**constants["learner"]),
        service=ProcessCosts(**constants["service"]),
        push_rate=constants["pushes"]["full"]["link"],
        encode_rate=delta["encode_bytes_per_second"],
        changed=delta["share_of_a_prompts_steps"]["1e-06"],
    )


def main() -> None:
    """Measure, simulate and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--again", action="store_true", help="take what the last one measured")
    found = last_validated() if parser.parse_args().again else validated()
    here = measured(found["machine_constants"])
    worst = max(abs(row["error"]) for row in found["validation"])
    details = {
        **found,
        "measured": asdict(here),
        "assumptions": [asdict(one) for one in hardware.ASSUMPTIONS.values()],
        "models": {name: asdict(model) for name, model in hardware.MODELS.items()},
        "scale": scale.curves(here),
        "changes": scale.changes(here),
        "advice": scale.advice(here),
    }
    write(
        Row(
            name=NAME,
            value=worst,
            unit="largest error of a simulated step",
            wanted=f"at most {page.WANTED}",
            holds=worst <= page.WANTED,
            baseline="real runs at 1 to 8 generation processes, same run",
            machine=found["measured_on"],
            details=details,
        )
    )
    plot.draw(details["scale"], DOCS / "scale.svg")
    for name in PAGES:
        path = DOCS / name
        path.write_text(page.with_tables(path.read_text(), details))
    for row in found["validation"]:
        print("{name}: {measured:.2f} s, simulated {simulated:.2f} s, {error:+.0%}".format(**row))


if __name__ == "__main__":
    main()
