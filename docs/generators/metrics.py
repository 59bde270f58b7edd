"""docs/metrics.md: the registered Prometheus metrics and the names in the run record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

# Each of these modules registers its metrics when it is imported.
import antiphon.clients.metrics
import antiphon.learner.weights.replica_metrics
import antiphon.services.reward
import antiphon.services.transition  # noqa: F401
from antiphon.learner.record.metrics import learner_metrics
from antiphon.services.common.prometheus import certificate_expiry, rpc_metrics, tell_build
from antiphon.services.generation.metrics import generation_metrics

OF_CALLS = ("grpc_client_", "antiphon_client_")
"""Of whoever has a client."""
OF_LEARNER = "antiphon_learner_"

HEADER = """# Metrics

Generated from the registered metrics by `make docs`; do not edit.

A run tells its figures twice: to Prometheus, at `/metrics` of every process, and to its run folder,
in `metrics.jsonl`. Agents count from 0, turns from 1.

## Prometheus

Every process also exports the client library's `process_*` and `python_*` metrics. Labels have few
values: never a prompt, a step or a run id; the run's name is in `antiphon_run_info` alone. What
generation services share with vLLM has vLLM's names behind the prefix. Dashboards and alerts of
them: [monitoring.md](monitoring.md).
"""

RECORD = """## The run record

A line of `metrics.jsonl` is written every `logging_steps` joint actions and at the end. It holds
the time and the counters, then the figures since the line before: means, unless their name or
meaning says otherwise. What a shared policy does is told under its first agent. `turn_T` and
`agent_A` stand for `turn_1`, `agent_0` and so on, `STAGE` for `generate`, `score`, `transition`,
`update` or `push`.

| name | meaning |
|---|---|
"""

FIGURES = {
    "time": "When the line was written, seconds since 1970.",
    "elapsed_seconds": "Seconds since the run began.",
    "epoch": "Epoch under way, counted from 1.",
    "prompts": "Prompts trained so far.",
    "joint_actions": "Joint actions so far.",
    "skipped_prompts": "Number of prompts too long for the context.",
    "seconds/STAGE": "Seconds in which a stage was under way; stages may overlap.",
    "turn_T/reward_mean": "Mean reward of the nodes of this turn.",
    "turn_T/expected_return": "Mean return of the nodes of this turn.",
    "turn_T/reference_kl_mean": "Reference KL of a completion (with `reference_kl_enabled`), "
    "summed over its tokens; mean over all agents' completions that have a return.",
    "turn_T/reference_kl_penalty_mean": "The same times `reference_kl_coef`, where it is taken "
    "off the returns.",
    "agent_A/turn_T/reference_kl_mean": "The same of one agent.",
    "turn_T/nodes": "Number of nodes.",
    "turn_T/joint_actions": "Number of joint actions.",
    "turn_T/missing_rewards": "Number of joint actions without a reward.",
    "turn_T/unsplit_completions": "Number of joint completions that the centralised adapter could "
    "not split.",
    "turn_T/components/NAME": "A named component of the rewards, mean of the nodes of this turn.",
    "turn_T/stop/last_turn": "Number of branches that ended because this is the last turn.",
    "turn_T/stop/early_termination": "Number that ended by `early_termination_threshold`.",
    "turn_T/stop/unscored": "Number that ended because the joint action has no reward.",
    "turn_T/stop/transition": "Number that the transition ended.",
    "turn_T/stop/truncated": "Number whose next prompt no longer fits the context.",
    "agent_A/advantage_spread": "Largest minus smallest advantage of a live group.",
    "agent_A/generated_tokens": "Number of tokens generated.",
    "agent_A/completion_tokens_mean": "Tokens of a completion.",
    "agent_A/live_nodes": "Number of nodes trained on.",
    "agent_A/dead_nodes": "Number of nodes whose returns do not differ.",
    "agent_A/staleness_mean": "Publishes between the oldest weights that a node was sampled from "
    "and its entering the buffer, mean of the nodes that came to an optimiser step.",
    "agent_A/staleness_max": "The most of them, at most `max_staleness`.",
    "agent_A/steps": "Number of optimiser steps.",
    "agent_A/trained_tokens": "Number of tokens trained on.",
    "agent_A/forced_tokens": "Number of sampled tokens that the learner's kept set had left out.",
    "agent_A/loss": "Loss of an optimiser step.",
    "agent_A/grad_norm": "Gradient norm of an optimiser step, before clipping.",
    "agent_A/learning_rate": "Learning rate of an optimiser step.",
    "agent_A/ratio_mean": "Importance ratio of a token.",
    "agent_A/ratio_max": "Largest importance ratio.",
    "agent_A/clip_fraction": "Share of tokens whose gradient the clip took.",
    "agent_A/truncated_fraction": "Share of tokens whose ratio was above the cap "
    "(with `max_staleness` above 0).",
    "agent_A/logprob_gap_mean": "Difference of log-probability between learner and engine.",
    "agent_A/logprob_gap_max": "The largest such difference.",
    "agent_A/engine_gap_mean": "The same where the engine sampled with the learner's weights: how "
    "far the engine itself is from the learner.",
    "agent_A/engine_gap_max": "The largest such difference.",
    "agent_A/engine_ratio_mean": "Importance ratio at the same weights; 1 where engine and learner "
    "agree.",
    "agent_A/engine_ratio_max": "The largest such ratio.",
    "agent_A/entropy": "Entropy of the sampling distribution at a completion's positions, exact, "
    "in nats (of the full softmax with `logprob_support` full).",
    "agent_A/reference_kl_loss": "What the reference KL adds to the loss "
    '(with `reference_kl_mode` "loss").',
    "agent_A/weights_version": "Last version published.",
    "agent_A/push_bytes": "Bytes of weights sent.",
    "agent_A/push_seconds": "Seconds of publishing.",
    "agent_A/push_pause_seconds_max": "Longest time in which a replica could not generate.",
}

EVALUATIONS = """
### Evaluations

Every evaluation writes a line of its own, with the time and the counters
([Evaluation](evaluation.md)). Means are over tasks, each of which weighs the same.

| name | meaning |
|---|---|
"""

EVALUATION_FIGURES = {
    "eval/number": "Of this evaluation, counted from 1 in a run.",
    "eval/seconds": "Seconds that it took.",
    "eval/tasks": "Number of tasks.",
    "eval/skipped_prompts": "Number of tasks whose prompt is too long for the context.",
    "eval/turn_T/reward_mean": "Mean reward of a task in this turn.",
    "eval/turn_T/expected_return": "Mean return of a task in this turn, without a reference KL.",
    "eval/turn_T/joint_actions": "Number of joint actions.",
    "eval/turn_T/missing_rewards": "Number of joint actions without a reward.",
    "eval/agent_A/completion_tokens_mean": "Tokens of a completion.",
    "eval/NAME": "What `eval_aggregator` returned.",
}


def page() -> str:
    """The page as Markdown."""
    learner, generation, every = CollectorRegistry(), CollectorRegistry(), CollectorRegistry()
    learner_metrics(learner)
    generation_metrics(generation)
    rpc_metrics(every)
    tell_build("docs", every)
    certificate_expiry(every)
    calls = [metric for metric in metrics(REGISTRY) if is_of(metric, *OF_CALLS)]
    replicas = [metric for metric in metrics(REGISTRY) if is_of(metric, OF_LEARNER)]
    functions = [m for m in metrics(REGISTRY) if not is_of(m, *OF_CALLS, OF_LEARNER)]
    sections: dict[str, Iterable[MetricWrapperBase]] = {
        "Every process": metrics(every),
        "Generation service": metrics(generation),
        "Reward and transition services": functions,
        "Learner": [*metrics(learner), *replicas],
        "Learner, of its calls": calls,
    }
    tables = [f"### {title}\n\n{table(of_section)}\n" for title, of_section in sections.items()]
    parts = ["\n".join([HEADER, *tables, RECORD]), *rows(FIGURES)]
    return "".join([*parts, EVALUATIONS, *rows(EVALUATION_FIGURES)])


def rows(figures: Mapping[str, str]) -> list[str]:
    """Rows of a table of figures."""
    return [f"| `{name}` | {text} |\n" for name, text in figures.items()]


def table(of_section: Iterable[MetricWrapperBase]) -> str:
    """Metrics by name."""
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for metric in sorted(of_section, key=lambda metric: metric.describe()[0].name):
        family = metric.describe()[0]
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)
        rows.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(rows)


def is_of(metric: MetricWrapperBase, *prefixes: str) -> bool:
    """Whether a metric's name begins with one of these."""
    return metric.describe()[0].name.startswith(prefixes)


def metrics(registry: CollectorRegistry) -> Iterator[MetricWrapperBase]:
    """The counters, gauges and histograms; the library has no public way to list them."""
    for collector in registry._collector_to_names:
        if isinstance(collector, MetricWrapperBase):
            yield collector
