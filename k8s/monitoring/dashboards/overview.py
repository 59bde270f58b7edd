"""One look: is this run healthy, and is it learning?"""

from __future__ import annotations

from grafana_foundation_sdk.models.common import BigValueTextMode
from grafana_foundation_sdk.models.dashboard import Dashboard
from k8s.monitoring.dashboards.parts import (
    AGENT,
    FILTER,
    TURN,
    Query,
    board,
    by_agent,
    figure,
    graph,
    rate,
    select,
)

STATES = {
    "0": ("starting", "blue"),
    "1": ("training", "green"),
    "2": ("paused", "yellow"),
    "3": ("stopping", "yellow"),
    "4": ("finished", "blue"),
    "5": ("stopped", "blue"),
    "6": ("failed", "red"),
}


def dashboard() -> Dashboard:
    """The dashboard."""
    return board(
        "Overview",
        "Is this run healthy and learning? Each panel's subject has a dashboard of its own.",
        {
            "The run": _run(),
            "Is it learning?": _learning(),
            "Where does the time go?": _time(),
            "Who is slow, failing or stale?": _services(),
        },
        variables=("agent", "turn"),
    )


def _run() -> list[object]:
    states = " or ".join(
        f'{number} * ({select("antiphon_run_state", f"""state="{name}" """.strip())} == 1)'
        for number, (name, _) in STATES.items()
    )
    return [
        figure(
            "Run",
            "The run's folder. Its settings are labels of antiphon_run_info.",
            "none",
            Query(select("antiphon_run_info"), "{{run}}"),
            show=BigValueTextMode.NAME,
        ),
        figure(
            "State",
            "What the learner is doing. failed: look at the end of its log and at summary.json.",
            "none",
            Query(f"max without (state) ({states})", "state"),
            mappings=STATES,
        ),
        figure(
            "Progress",
            "Share of the prompts of all epochs that are trained, resumed processes included.",
            "percentunit",
            Query(
                f"{select('antiphon_learner_prompts_done')} / "
                f"({select('antiphon_learner_prompts_planned')} > 0)",
                "trained",
            ),
        ),
        figure(
            "Time left",
            "Until the last epoch's end at the pace so far; empty before the first batch.",
            "s",
            Query(select("antiphon_learner_left_seconds"), "left"),
        ),
        figure(
            "Processes",
            "Processes that answer Prometheus, by what they are.",
            "none",
            Query(f"count by (service) ({select('antiphon_build_info')})", "{{service}}"),
            show=BigValueTextMode.VALUE_AND_NAME,
        ),
        figure(
            "Alerts",
            "Alerts of antiphon that fire now. Each has a page in docs/runbooks.",
            "none",
            Query(
                'count(ALERTS{alertstate="firing", alertname=~"Antiphon.+", '
                'namespace=~"$namespace"}) or vector(0)',
                "firing",
            ),
            steps=[(None, "green"), (1, "red")],
        ),
    ]


def _learning() -> list[object]:
    dead = "agent:antiphon_learner_dead_groups:ratio_rate30m"
    return [
        graph(
            "Expected return",
            "Mean return of a batch's nodes by turn. It should rise; turn 1 holds all later turns.",
            "none",
            Query(select("antiphon_learner_expected_return", TURN), "turn {{turn}}"),
            low=None,
        ),
        graph(
            "Reward",
            "Mean reward of a batch's nodes by turn.",
            "none",
            Query(select("antiphon_learner_reward_mean", TURN), "turn {{turn}}"),
            low=None,
        ),
        graph(
            "Groups that teach nothing",
            "Share of groups whose returns do not differ, over 30 minutes. Near 1 nothing is "
            "learned: the task is too easy, too hard, or its rewards are too coarse.",
            "percentunit",
            Query(f"{dead}{{{FILTER}, {AGENT}}}", "agent {{agent}}"),
            high=1,
            steps=[(None, "green"), (0.5, "orange"), (0.9, "red")],
        ),
    ]


def _time() -> list[object]:
    batches = f"sum({rate('antiphon_learner_batch_seconds_total')})"
    return [
        graph(
            "Time by stage",
            "Seconds of each stage per second of training. Stages overlap, so their sum may be "
            "above 1; what is missing to 1 is neither: evaluations, checkpoints, waiting.",
            "percentunit",
            Query(
                f"sum by (stage) ({rate('antiphon_learner_stage_seconds_total')}) "
                f"/ ignoring (stage) group_left {batches}",
                "{{stage}}",
            ),
            stacked=True,
        ),
        graph(
            "Learner idle",
            "Share of a batch's time in which no optimiser step was under way: the learner starves "
            "for answers, scores or prompts.",
            "percentunit",
            Query(f"sum({rate('antiphon_learner_idle_seconds_total')}) / {batches}", "idle"),
            high=1,
        ),
        graph(
            "Tokens",
            "Tokens sampled by the generation services, and trained on by the learner.",
            "tokens/s",
            Query(
                by_agent(rate("antiphon_generation_generation_tokens_total")),
                "sampled, agent {{agent}}",
            ),
            Query(
                f"sum by (agent) ({rate('antiphon_learner_trained_tokens_total', AGENT)})",
                "trained, agent {{agent}}",
            ),
        ),
    ]


def _services() -> list[object]:
    ratio = "method:grpc_client_errors:ratio_rate5m"
    p95 = "method:grpc_client_handling_seconds:p95_rate5m"
    version = select("antiphon_generation_weights_version")
    return [
        graph(
            "Calls that fail",
            "Share of the learner's calls that end with an error, by method, over five minutes; "
            "those that succeed when made again are among them.",
            "percentunit",
            Query(f"{ratio}{{{FILTER}}}", "{{grpc_method}}"),
            high=1,
            steps=[(None, "green"), (0.1, "red")],
        ),
        graph(
            "Time of a call",
            "95th percentile of the learner's calls by method, over five minutes.",
            "s",
            Query(f"{p95}{{{FILTER}}}", "{{grpc_method}}"),
        ),
        graph(
            "Weights behind the learner",
            "Versions by which the oldest replica of an agent is behind. Above 0 for as long as a "
            "push takes; longer is a replica that is not reached.",
            "none",
            Query(
                f"max by (agent) ({select('antiphon_learner_weights_version', AGENT)}) "
                f"- on (agent) {by_agent(version, function='min')}",
                "agent {{agent}}",
            ),
            steps=[(None, "green"), (1, "orange")],
        ),
        graph(
            "Requests at the generation services",
            "Generate calls that are decoded, and jobs that wait for the engine.",
            "none",
            Query(by_agent(select("antiphon_generation_num_requests_running")), "runs, {{agent}}"),
            Query(by_agent(select("antiphon_generation_num_requests_waiting")), "waits, {{agent}}"),
        ),
        graph(
            "Missing rewards",
            "Joint actions without a reward, per second by why.",
            "none",
            Query(
                f"sum by (reason) ({rate('antiphon_learner_missing_rewards_total')})", "{{reason}}"
            ),
        ),
        graph(
            "Memory",
            "Resident memory of each process.",
            "bytes",
            Query(
                f"{select('process_resident_memory_bytes')} "
                "* on (namespace, job, instance) group_left (service) "
                f"{select('antiphon_build_info')}",
                "{{service}} {{instance}}",
            ),
        ),
    ]
