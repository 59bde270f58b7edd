"""A script for CoMLRL trains here with only its import line changed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from tests.support import run_folders
from tests.support.processes import Processes
from transformers import AutoModelForCausalLM

# Functions of the script itself: a closure over a counter, a lambda, no module to import them from.
SCRIPT = """
import math
import sys

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphon.learner import MAGRPOConfig, MAGRPOTrainer

model_name = sys.argv[1]


def make_reward(shortest, longest):
    calls = []

    def length_ratio_reward(completions1, completions2):
        calls.append(len(completions1))
        rewards = []
        for first, second in zip(completions1, completions2):
            ratio = len(second) / max(len(first), 1)
            rewards.append(math.exp(-max(shortest - ratio, ratio - longest, 0)))
        return rewards

    return length_ratio_reward, calls


def length_feedback(prompt, agent_completions, num_agents=2, **kwargs):
    ratio = len(agent_completions[1]) / max(len(agent_completions[0]), 1)
    return [
        f"{prompt} Last length {len(own)}, ratio {ratio:.1f}, goal 2 to 3. Please improve."
        for own in agent_completions
    ]


length_ratio_reward, calls = make_reward(2, 3)
trainer = MAGRPOTrainer(
    agents=[AutoModelForCausalLM.from_pretrained(model_name) for _ in range(2)],
    tokenizer=AutoTokenizer.from_pretrained(model_name),
    reward_func=length_ratio_reward,
    reward_processor=lambda value: 2 * value,
    formatters=[lambda item: item["prompt"], lambda item: item["prompt"] + " Write more."],
    external_transition=length_feedback,
    train_dataset=Dataset.from_dict(
        {
            "prompt": [
                "Describe a city in the clouds:",
                "Invent a new holiday and explain it:",
                "Write a bedtime story for a dragon:",
                "Design a playground on Mars:",
            ]
        }
    ),
    args=MAGRPOConfig(
        num_turns=2,
        num_train_epochs=2,
        num_generations=4,
        max_new_tokens=8,
        logging_steps=1,
        early_termination_threshold=0.9,
        agent_learning_rate=1e-3,
    ),
)
trainer.train()
trainer.save_model("saved")
print("joint actions scored in this process:", sum(calls))
"""


def test_the_script_trains_and_its_side_effects_are_its_own(
    processes: Processes, tiny_folders: Callable[..., Path], tmp_path: Path
) -> None:
    model = tiny_folders(kind="bytes", context=512)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    log = processes.start("script", [sys.executable, str(script), str(model)]).succeed(timeout=120)

    processes.assert_none_left()
    folder = run_folders.find(tmp_path)
    metrics = run_folders.metrics(folder)
    joint_actions = run_folders.total(metrics, "turn_1/joint_actions") + run_folders.total(
        metrics, "turn_2/joint_actions"
    )
    assert run_folders.total(metrics, "turn_1/joint_actions") == 2 * 4 * 4
    assert f"joint actions scored in this process: {joint_actions:g}" in log
    for epoch in (1, 2):
        for node in run_folders.rollouts(folder, epoch):
            asked = [agent["prompt"] for agent in node["agents"]]
            # As in CoMLRL, formatters see later turns' prompts as item["prompt"].
            assert not asked[0].endswith("Write more.")
            assert asked[1].endswith(" Write more.")
    start = AutoModelForCausalLM.from_pretrained(model)
    for agent in (0, 1):
        trained = AutoModelForCausalLM.from_pretrained(tmp_path / "saved" / f"agent_{agent}")
        weights = trained.get_input_embeddings().weight
        assert not torch.equal(weights, start.get_input_embeddings().weight)
