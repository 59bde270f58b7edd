"""How weights reach the generation services, and how safe they are."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard
from k8s.monitoring.dashboards.parts import (
    AGENT,
    Query,
    board,
    by_agent,
    figure,
    graph,
    quantile,
    quantile_by_agent,
    rate,
    select,
)

OF_AGENT = "agent {{agent}}"


def dashboard() -> Dashboard:
    """The dashboard."""
    return board(
        "Weights",
        "Do the services sample what the learner trained, what does a push cost, and what would a "
        "crash lose?",
        {"Versions": _versions(), "Pushes": _pushes(), "Checkpoints": _checkpoints()},
        variables=("agent",),
    )


def _versions() -> list[object]:
    replicas = select("antiphon_generation_weights_version")
    learner = select("antiphon_learner_weights_version", AGENT)
    return [
        graph(
            "Version at the learner",
            "What every reachable replica has applied.",
            "none",
            Query(learner, OF_AGENT),
        ),
        graph(
            "Version at the replicas",
            "What each process samples from.",
            "none",
            Query(
                by_agent(replicas, function="max", by="agent, instance"), "{{agent}} {{instance}}"
            ),
        ),
        graph(
            "Replicas behind the learner",
            "Versions by which each replica is behind.",
            "none",
            Query(
                f"max by (agent) ({learner}) - on (agent) group_right "
                f"{by_agent(replicas, function='max', by='agent, instance')}",
                "{{agent}} {{instance}}",
            ),
            steps=[(None, "green"), (1, "orange")],
        ),
    ]


def _pushes() -> list[object]:
    prefix = "antiphon_learner_push"
    return [
        graph(
            "Pushes",
            "Pushes that replicas took per minute, by kind and how they ended.",
            "none",
            Query(
                f"60 * sum by (kind, outcome) ({rate('antiphon_generation_pushes_total')})",
                "{{kind}}, {{outcome}}",
            ),
        ),
        graph(
            "Bytes sent",
            "Per second by agent, to all replicas together.",
            "Bps",
            Query(f"sum by (agent) ({rate(f'{prefix}_bytes_total', AGENT)})", OF_AGENT),
        ),
        graph(
            "Bytes of a publish",
            "Mean over publishes, all replicas together. Deltas and adapters are small.",
            "bytes",
            Query(
                f"sum by (agent, kind) ({rate(f'{prefix}_bytes_total', AGENT)}) / "
                f"sum by (agent, kind) ({rate(f'{prefix}_seconds_count', AGENT)})",
                "agent {{agent}} {{kind}}",
            ),
        ),
        graph(
            "Time of a publish",
            "From encoding to the last replica's answer, at the learner.",
            "s",
            Query(quantile(0.5, f"{prefix}_seconds", AGENT, by="agent"), "p50, agent {{agent}}"),
            Query(quantile(0.95, f"{prefix}_seconds", AGENT, by="agent"), "p95, agent {{agent}}"),
        ),
        graph(
            "Time of a push at the replicas",
            "From its header until applied.",
            "s",
            Query(quantile_by_agent(0.5, "push_seconds"), "p50, agent {{agent}}"),
            Query(quantile_by_agent(0.95, "push_seconds"), "p95, agent {{agent}}"),
        ),
        graph(
            "Pause of a push",
            "Time in which a replica could not sample: the part of a push that costs.",
            "s",
            Query(quantile_by_agent(0.5, "push_pause_seconds"), "p50, agent {{agent}}"),
            Query(quantile_by_agent(0.95, "push_pause_seconds"), "p95, agent {{agent}}"),
        ),
    ]


def _checkpoints() -> list[object]:
    written = select("antiphon_learner_checkpoint_timestamp_seconds")
    seconds = "antiphon_learner_checkpoint_seconds"
    return [
        figure(
            "Age of the last checkpoint",
            "What a crash would cost. Empty where none is written yet, or none is to be.",
            "s",
            Query(f"time() - ({written} > 0)", "age"),
            width=8,
            steps=[(None, "green"), (3600, "orange"), (7200, "red")],
        ),
        figure(
            "Checkpoints that failed",
            "Since the process started; the log says why.",
            "none",
            Query(select("antiphon_learner_checkpoint_failures_total"), "failed"),
            width=8,
            steps=[(None, "green"), (1, "red")],
        ),
        figure(
            "Time of a checkpoint",
            "Mean seconds of writing one.",
            "s",
            Query(f"{select(f'{seconds}_sum')} / {select(f'{seconds}_count')}", "seconds"),
            width=8,
        ),
    ]
