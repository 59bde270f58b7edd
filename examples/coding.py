"""Two agents write Python together: a helper function, and the function that a task asks for.

The tasks are in coding_tasks.jsonl; reward and feedback come with antiphon
(`antiphon.services.reward.coding`, `antiphon.services.transition.coding`) and run what the agents
write in a sandbox. `antiphon train examples/coding.toml` trains it.
"""

from __future__ import annotations

from typing import Any


def helper_prompt(item: dict[str, Any]) -> str:
    """Ask the first agent for a function that the second can use."""
    return (
        f"{item['prompt']}\nDo not write that function. Write a small helper function, named "
        "`aux`, that makes it easy. Answer with Python code alone:\n"
    )


def main_prompt(item: dict[str, Any]) -> str:
    """Ask the second agent for the function itself."""
    return (
        f"{item['prompt']}\nA function `aux`, which a colleague writes for this task, may be used. "
        "Answer with Python code alone:\n"
    )
