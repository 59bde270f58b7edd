"""How answers come about: trees at the learner, requests and tokens at the generation services."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard
from k8s.monitoring.dashboards.parts import (
    AGENT,
    RATE,
    TURN,
    Query,
    board,
    by_agent,
    graph,
    heat,
    quantile_by_agent,
    rate,
    select,
)

OF_AGENT = "agent {{agent}}"
PREFIX = "antiphon_generation_"


def dashboard() -> Dashboard:
    """The dashboard."""
    return board(
        "Rollouts",
        "How answers come about: the trees that grow, and who samples them how fast.",
        {
            "Trees": _trees(),
            "Replicas": _replicas(),
            "Throughput": _throughput(),
            "Latency": _latency(),
            "Batches and cache": _batches(),
        },
        variables=("agent", "turn"),
    )


def _trees() -> list[object]:
    return [
        graph(
            "Nodes",
            "Nodes of trees grown per minute by turn.",
            "none",
            Query(
                f"60 * sum by (turn) ({rate('antiphon_learner_nodes_total', TURN)})",
                "turn {{turn}}",
            ),
        ),
        graph(
            "Branches that ended",
            "Per minute by why: the last turn, a mean reward above the threshold, no reward, the "
            "transition's word, or a prompt beyond the context.",
            "none",
            Query(
                f"60 * sum by (reason) ({rate('antiphon_learner_branches_stopped_total')})",
                "{{reason}}",
            ),
        ),
        graph(
            "Prompts trained and skipped",
            "Per minute; skipped are those too long for the context.",
            "none",
            Query(f"60 * sum({rate('antiphon_learner_prompts_trained_total')})", "trained"),
            Query(f"60 * sum({rate('antiphon_learner_prompts_skipped_total')})", "skipped"),
        ),
    ]


def _replicas() -> list[object]:
    replicas = select("antiphon_learner_replicas", AGENT)
    changes = rate("antiphon_learner_replica_changes_total", AGENT)
    moved = rate("antiphon_learner_chunks_moved_total", AGENT)
    return [
        graph(
            "Replicas by state",
            "Generation replicas that the learner asks: serving, behind (their weights are too "
            "old to be asked), or left out.",
            "none",
            Query(f"sum by (agent, state) ({replicas})", "agent {{agent}} {{state}}"),
        ),
        graph(
            "Changes of replicas",
            "Per minute: who joined, left, was lost, came back or fell behind.",
            "none",
            Query(f"60 * sum by (agent, change) ({changes})", "agent {{agent}} {{change}}"),
        ),
        graph(
            "Chunks moved",
            "Per minute: chunks of prompts that another replica was asked for again. Now and then "
            "is fine; many cost time.",
            "none",
            Query(f"60 * sum by (agent) ({moved})", OF_AGENT),
        ),
    ]


def _throughput() -> list[object]:
    return [
        graph(
            "Tokens out",
            "Tokens sampled per second.",
            "tokens/s",
            Query(by_agent(rate(f"{PREFIX}generation_tokens_total")), OF_AGENT),
        ),
        graph(
            "Tokens in",
            "Prompt tokens computed per second; rows of one prompt share them.",
            "tokens/s",
            Query(by_agent(rate(f"{PREFIX}prompt_tokens_total")), OF_AGENT),
        ),
        graph(
            "Completions by end",
            "Finished completions per second. Many at `length` are cut off: raise max_new_tokens.",
            "none",
            Query(
                f"sum by (finish_reason) ({rate(f'{PREFIX}completions_total')})",
                "{{finish_reason}}",
            ),
        ),
        heat(
            "Tokens of a completion",
            "How many completions had which length.",
            "none",
            Query(
                f"sum by (le) (increase({select(f'{PREFIX}completion_tokens_bucket')}[{RATE}]))",
                "{{le}}",
            ),
        ),
        graph(
            "Requests by end",
            "Generate calls per second by how they ended.",
            "none",
            Query(f"sum by (outcome) ({rate(f'{PREFIX}requests_total')})", "{{outcome}}"),
        ),
        graph(
            "Tokens of the learner",
            "Tokens that the learner has received, per second by agent.",
            "tokens/s",
            Query(
                f"sum by (agent) ({rate('antiphon_learner_generated_tokens_total', AGENT)})",
                OF_AGENT,
            ),
        ),
    ]


def _latency() -> list[object]:
    def panel(title: str, description: str, metric: str) -> object:
        return graph(
            title,
            f"{description} Median and 95th percentile by agent.",
            "s",
            Query(quantile_by_agent(0.5, metric), "p50, agent {{agent}}"),
            Query(quantile_by_agent(0.95, metric), "p95, agent {{agent}}"),
        )

    return [
        panel("Request", "From arrival to the last completion.", "e2e_request_latency_seconds"),
        panel("Queue", "Wait for the engine.", "request_queue_time_seconds"),
        panel("First tokens", "From arrival to the first tokens.", "time_to_first_token_seconds"),
        panel("Prefill", "Time of one batch's prefill.", "request_prefill_time_seconds"),
        panel("Decode", "Time of one batch's decode steps.", "request_decode_time_seconds"),
        panel("Between tokens", "Time of one decode step.", "inter_token_latency_seconds"),
    ]


def _batches() -> list[object]:
    return [
        graph(
            "Requests",
            "Generate calls being decoded, and jobs that wait for the engine.",
            "none",
            Query(by_agent(select(f"{PREFIX}num_requests_running")), "runs, agent {{agent}}"),
            Query(by_agent(select(f"{PREFIX}num_requests_waiting")), "waits, agent {{agent}}"),
        ),
        graph(
            "Rows of a batch",
            "Mean rows of a batch at its start. Small batches waste the machine.",
            "none",
            Query(
                f"{by_agent(rate(f'{PREFIX}batch_size_sum'))} / "
                f"{by_agent(rate(f'{PREFIX}batch_size_count'))}",
                OF_AGENT,
            ),
        ),
        graph(
            "Prompt tokens shared",
            "Share of prompt tokens that a row took from another row of the same prompt.",
            "percentunit",
            Query(
                f"{by_agent(rate(f'{PREFIX}prefix_cache_hits_total'))} / "
                f"{by_agent(rate(f'{PREFIX}prefix_cache_queries_total'))}",
                OF_AGENT,
            ),
            high=1,
        ),
        graph(
            "Key-value cache",
            "Places of the cache in use, padding included.",
            "none",
            Query(by_agent(select(f"{PREFIX}kv_cache_tokens")), OF_AGENT),
        ),
        graph(
            "Age of the engine's last step",
            "While it has work; 0 while idle. What keeps growing is an engine that hangs.",
            "s",
            Query(by_agent(select(f"{PREFIX}engine_step_age_seconds"), function="max"), OF_AGENT),
            steps=[(None, "green"), (60, "orange"), (300, "red")],
        ),
    ]
