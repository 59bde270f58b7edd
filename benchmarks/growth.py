"""How a step grows: seconds per joint action, and the learner's memory, as a run gets larger.

A tiny model, a real generation service, agents that share one policy (so that sixteen times as many
agents are not sixteen times as many processes). From a base, each of generations, agents, tasks of
a rollout batch and tokens grows 16 times, and turns from 1 to 4. Seconds count per joint action;
where a joint action itself grows (agents, tokens), per completion and per token.

Memory is the peak of the learner's process for rollout batches of 1, 4 and 16 times the tokens.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.results import Row, write
from tests.support.models import tiny_folder

WITHIN = 1.1
CONTEXT = 1024


@dataclass(frozen=True)
class Size:
    """How large a run is; `tasks` are those of a rollout batch. The first two batches warm up."""

    generations: int = 4
    agents: int = 2
    tasks: int = 4
    tokens: int = 16
    turns: int = 1
    batches: int = 6

    @property
    def joint_actions(self) -> int:
        """Of a rollout batch."""
        return self.tasks * sum(self.generations**turn for turn in range(1, self.turns + 1))

    @property
    def kept_tokens(self) -> int:
        """Tokens of a rollout batch's completions, at most."""
        return self.joint_actions * self.agents * self.tokens


BASE = Size()
TREE = Size(generations=2)
GROWTH = {
    "generations": (BASE, replace(BASE, generations=64, batches=4), 1),
    "agents": (BASE, replace(BASE, agents=32, batches=4), 16),
    "tasks": (BASE, replace(BASE, tasks=64, batches=4), 1),
    "tokens": (BASE, replace(BASE, tokens=16 * 16, batches=4), 16),
    "turns": (TREE, replace(TREE, turns=4, batches=4), 1),
}
"""From where to where, and by how much a joint action itself grows."""
MEMORY = [replace(BASE, tasks=tasks, tokens=48, batches=1) for tasks in (16, 64, 256)]


def train(model: Path, address: str, out: Path, size: Size) -> None:
    """One run in this process."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from antiphon.learner import MAGRPOConfig, MAGRPOTrainer

    trainer = MAGRPOTrainer(
        agents=[AutoModelForCausalLM.from_pretrained(model)],
        num_agents=size.agents,
        tokenizer=AutoTokenizer.from_pretrained(model),
        reward_func=lambda *texts: [float(len(text)) for text in texts[0]],
        external_transition=_again,
        train_dataset=[{"prompt": "one two three"}] * (size.tasks * size.batches),
        args=MAGRPOConfig(
            num_train_epochs=1,
            shared_policy=True,
            num_turns=size.turns,
            num_generations=size.generations,
            max_new_tokens=size.tokens,
            temperature=1.0,
            top_p=None,
            top_k=None,
            early_termination_threshold=None,
            agent_learning_rate=0.0,
            rollout_batch_size=size.tasks,
            rollout_buffer_size=16,
            reward_batch_size=1024,
            logging_steps=1,
            eval_interval=0,
            checkpoint_interval=0,
        ),
        run_directory=out,
        run_name="run",
        generation_addresses=[address],
        wandb_config={"verbose": False},
        threads=1,
    )
    trainer.train()


def _again(prompt: str, num_agents: int) -> list[str]:
    return [prompt] * num_agents


def measured(model: Path, address: str, size: Size) -> dict[str, float]:
    """Seconds per rollout batch, tokens of one, and the peak memory in MB of a run in a process."""
    with TemporaryDirectory(prefix="antiphon-") as out:
        asked = [str(model), address, out, json.dumps(asdict(size))]
        command = [sys.executable, "-m", "benchmarks.growth", "--run", *asked]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True)
        lines = (Path(out) / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    rows = [row for row in rows if "turn_1/nodes" in row]
    steps = [later["time"] - earlier["time"] for earlier, later in pairwise(rows)][1:]
    wanted = [size.joint_actions * (number + 1) for number in range(len(rows))]
    if [row["joint_actions"] for row in rows] != wanted:
        raise RuntimeError(f"{size}: other joint actions than wanted")
    agents = range(size.agents)
    tokens = sum(row[f"agent_{agent}/generated_tokens"] for row in rows for agent in agents)
    return {
        "seconds": median(steps) if steps else 0.0,
        "tokens": tokens / len(rows),
        "peak_mb": float(done.stdout.split()[-1]),
    }


@contextlib.contextmanager
def service(model: Path, folder: Path) -> Iterator[str]:
    """A generation service that any run may take."""
    socket, ready = folder / "engine.sock", folder / "address.json"
    command = [
        *(sys.executable, "-c", "from antiphon.clients.cli import main; main()"),
        *("serve", "generation", "--model", str(model), "--host", f"unix:{socket}"),
        *("--address-file", str(ready), "--run-lease", "0", "--exit-with-parent"),
    ]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with (folder / "service.log").open("w") as log:
        process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=log, stderr=log
        )
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise RuntimeError((folder / "service.log").read_text())
            time.sleep(0.1)
        yield f"unix:{socket}"
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Measure and write the row."""
    with TemporaryDirectory(prefix="antiphon-") as temporary:
        folder = Path(temporary)
        # Narrow weights make every token about as likely, the end token too.
        model = tiny_folder(folder / "model", context=CONTEXT, spread=0.02)
        with service(model, folder) as address:
            bases: dict[Size, dict[str, float]] = {}
            growth: dict[str, Any] = {}
            for name, (small, large, larger) in GROWTH.items():
                if small not in bases:
                    bases[small] = measured(model, address, small)
                before, after = bases[small], measured(model, address, large)
                per_unit = [
                    before["seconds"] / small.joint_actions,
                    after["seconds"] / large.joint_actions / larger,
                ]
                growth[name] = {
                    "from": asdict(small),
                    "to": asdict(large),
                    "seconds_per_joint_action_before_and_after": per_unit,
                    "times": per_unit[1] / per_unit[0],
                }
            peaks = [measured(model, address, size) for size in MEMORY]
    worst = max(entry["times"] for entry in growth.values())
    per_token = [
        (after["peak_mb"] - before["peak_mb"]) * 1e6 / (after["tokens"] - before["tokens"])
        for before, after in pairwise(peaks)
    ]
    linear = per_token[1] / per_token[0]
    write(
        Row(
            name="growth",
            value=worst,
            unit="times the seconds per joint action",
            wanted=f"at most {WITHIN}; memory no worse than linear in tokens (within {WITHIN})",
            holds=worst <= WITHIN and linear <= WITHIN,
            baseline="the small run, same service, same invocation",
            details={
                "growth": growth,
                "memory": {
                    "peak_mb_by_kept_tokens": {p["tokens"]: p["peak_mb"] for p in peaks},
                    "bytes_per_token_between_them": per_token,
                    "times": linear,
                },
            },
        )
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        given = sys.argv[2:]
        train(Path(given[0]), given[1], Path(given[2]), Size(**json.loads(given[3])))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    else:
        main()
