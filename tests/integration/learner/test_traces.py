"""A run's traces: one per training step, through every process that takes part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.otlp import Span, collector
from tests.support.processes import command, run

TASK = """
def reward(first, second):
    return [float(len(b) - len(a)) for a, b in zip(first, second)]
def again(prompt, num_agents):
    return [prompt + " again"] * num_agents
"""
RUN = """
[magrpo]
num_turns = 2
num_train_epochs = 1
num_generations = 2
max_new_tokens = 4
temperature = 1.0
early_termination_threshold = "none"
[[agents]]
model = "{model}"
[[agents]]
model = "{model}"
[reward]
function = "task:reward"
[transition]
function = "task:again"
[dataset]
prompts = ["a red cat", "two blue dog"]
[server]
traces = true
"""


def test_a_training_step_is_one_trace_through_all_processes(
    tmp_path: Path, tiny_folders: Callable[..., Path]
) -> None:
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "run.toml").write_text(RUN.format(model=tiny_folders(seed=0)))
    with collector() as collected:
        run(
            command("train", "run.toml"),
            cwd=tmp_path,
            environ={"OTEL_EXPORTER_OTLP_ENDPOINT": collected.url},
        )
    steps = collected.named("training_step")
    assert len(steps) == len({step.trace for step in steps}) == 2
    spans = {span.id: span for span in collected.spans}

    def path(span: Span) -> list[str]:
        """The names from a trace's first span to this one."""
        above = path(spans[span.parent]) if span.parent else []
        return [*above, span.name.removeprefix("antiphon.v1.")]

    paths = [(path(span), span.service) for span in collected.spans]
    generate, learner = "GenerationService/Generate", "antiphon-learner"
    beneath = ["training_step", "generate", generate, generate]
    # Two agents and two turns per step.
    assert paths.count((beneath, "antiphon-generation")) == 8
    push = "GenerationService/PushWeights"
    assert (["training_step", "push", push, push], "antiphon-generation") in paths
    score, transition = "RewardService/Score", "TransitionService/Transition"
    assert (["training_step", "generate", "score", score, score, "task.reward"], learner) in paths
    assert any(own[-3:] == [transition, transition, "task.again"] for own, _ in paths)
    assert (["training_step", "update"], learner) in paths
    assert not any(span.failed for span in collected.spans)
