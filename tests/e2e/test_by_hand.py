"""Process by process, as on a cluster: four services, the learner and a watcher, over addresses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import Started

TASK = '''
"""A task of its own module, as users write it."""

def reward(first, second):
    return [0.1 * len(a.split()) + 0.2 * b.split().count("a") for a, b in zip(first, second)]


def transition(prompt, agent_completions, num_agents):
    return [f"again {prompt}"] * num_agents
'''

RUN = """
[run]
directory = "runs"
name = "by-hand"

[magrpo]
num_turns = 2
num_train_epochs = 2
num_generations = 3
max_new_tokens = 6
temperature = 1.0
top_k = "none"
top_p = "none"
agent_learning_rate = 1e-2
early_termination_threshold = "none"
logging_steps = 1
wire_dtype = "{dtype}"

[dataset]
file = "prompts.jsonl"

[server]
port = 0
address_file = "learner.address.json"
"""


@dataclass
class HandRun:
    """What was started and where the run went."""

    directory: Path
    folder: Path
    generation: list[Started]
    training: Started
    watching: Started
