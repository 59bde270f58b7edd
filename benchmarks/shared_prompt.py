"""Training a group whose prompt is far longer than its completions: shared against repeated.

    make bench-shared-prompt

One optimiser step of SmolLM2-135M on one group (512 prompt tokens, eight completions of 64), with
the prompt in one row with all completions, and with a prompt for each completion, in turn. A short
prompt tells how the cost grows. Both gradients are held against each other before any time is told.
"""

from __future__ import annotations

import statistics
import time

import torch
from benchmarks import results
from benchmarks.update_parts.flops import needed
from benchmarks.update_parts.groups import group, policy
from benchmarks.update_parts.plain import first_gradient, relative_difference

from antiphon.learner.arithmetic.samples import TrainingSample
from antiphon.learner.policy.policy import Policy

LONG, SHORT, COMPLETIONS, NEW_TOKENS = 512, 64, 8, 64
ROUNDS = 3
WANTED = 3.0
SAME = 1e-5


def main() -> None:
    """Measure and write the row."""
    shared, repeated = (policy(new_tokens=NEW_TOKENS) for _ in range(2))
    results.require(shared.forward.shared_up_to >= LONG + NEW_TOKENS, "no prompt is shared")
    repeated.forward.shared_up_to = 0
    long, short = (
        group(shared, prompt=prompt, completions=COMPLETIONS, new_tokens=NEW_TOKENS, seed=prompt)
        for prompt in (LONG, SHORT)
    )
    _seconds(shared, long), _seconds(repeated, long)
    difference = relative_difference(first_gradient(shared), first_gradient(repeated))
    results.require(difference <= SAME, f"gradients differ by {difference:.2g}, at most {SAME}")
    sides = {"shared": (shared, long), "repeated": (repeated, long), "short": (shared, short)}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, (trained, node) in sides.items():
            times[name].append(_seconds(trained, node))
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = medians["repeated"] / medians["shared"]
    results.write(
        results.Row(
            name="shared_prompt",
            value=ratio,
            unit="times as fast",
            wanted=f"at least {WANTED:g}",
            holds=ratio >= WANTED,
            baseline="the prompt repeated for each completion",
            details={
                "prompt_tokens": LONG,
                "completions": COMPLETIONS,
                "completion_tokens": NEW_TOKENS,
                "step_seconds": times,
                "gradient_difference": difference,
                "tokens_through_the_layers": {
                    "shared": needed([long]).tokens,
                    "repeated": COMPLETIONS * (LONG + NEW_TOKENS - 1),
                    "short": needed([short]).tokens,
                },
                "threads": torch.get_num_threads(),
            },
        )
    )


def _seconds(trained: Policy, node: TrainingSample) -> float:
    start = time.perf_counter()
    stepped = trained.step([node]).stepped
    seconds = time.perf_counter() - start
    results.require(stepped, "a node was not trained")
    return seconds


if __name__ == "__main__":
    main()
