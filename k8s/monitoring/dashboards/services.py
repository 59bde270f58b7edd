"""Every process: its calls, the user's functions, its memory and time, its certificate."""

from __future__ import annotations

from grafana_foundation_sdk.models.common import BigValueTextMode
from grafana_foundation_sdk.models.dashboard import Dashboard
from k8s.monitoring.dashboards.parts import (
    FILTER,
    RATE,
    Query,
    board,
    figure,
    graph,
    heat,
    quantile,
    quantiles,
    rate,
    select,
)

METHOD = "{{grpc_method}}"


def dashboard() -> Dashboard:
    """The dashboard."""
    return board(
        "Services",
        "Who is slow, who fails, who starves: calls, functions and processes.",
        {
            "Calls that services answer": _answered(),
            "Calls that the learner makes": _made(),
            "Your functions": _functions(),
            "Processes": _processes(),
        },
    )


def _answered() -> list[object]:
    own = 'grpc_service=~"antiphon.+"'
    started = f"sum by (grpc_method) ({select('grpc_server_started_total', own)})"
    handled = f"sum by (grpc_method) ({select('grpc_server_handled_total', own)})"
    return [
        graph(
            "Calls answered",
            "Per second by method.",
            "reqps",
            Query(f"sum by (grpc_method) ({rate('grpc_server_handled_total', own)})", METHOD),
        ),
        graph(
            "Time of an answer",
            "95th percentile by method, over five minutes.",
            "s",
            Query(
                f"method:grpc_server_handling_seconds:p95_rate5m{{{FILTER}, {own}}}",
                f"{{{{job}}}} {METHOD}",
            ),
        ),
        graph(
            "Answers by status",
            "Per second by status code. CANCELLED: the caller gave up.",
            "reqps",
            Query(
                f"sum by (grpc_code) ({rate('grpc_server_handled_total', own)})", "{{grpc_code}}"
            ),
        ),
        graph(
            "Calls under way",
            "Begun and not ended, by method.",
            "none",
            Query(f"{started} - on (grpc_method) ({handled} or 0 * {started})", METHOD),
        ),
    ]


def _made() -> list[object]:
    started = f"sum by (grpc_method) ({rate('grpc_client_started_total')})"
    return [
        graph("Calls made", "Per second by method.", "reqps", Query(started, METHOD)),
        graph(
            "Calls by status",
            "Per second by status code.",
            "reqps",
            Query(f"sum by (grpc_code) ({rate('grpc_client_handled_total')})", "{{grpc_code}}"),
        ),
        graph(
            "Time of a call",
            "Median and 95th percentile by method, as the learner sees it.",
            "s",
            Query(
                quantile(0.5, "grpc_client_handling_seconds", by="grpc_method"), f"p50, {METHOD}"
            ),
            Query(
                quantile(0.95, "grpc_client_handling_seconds", by="grpc_method"), f"p95, {METHOD}"
            ),
        ),
        graph(
            "Calls made again",
            "Retries after passing errors, per second by method. Now and then is fine.",
            "reqps",
            Query(
                f"sum by (grpc_method) ({rate('antiphon_client_retries_total')})",
                METHOD,
            ),
        ),
    ]


def _functions() -> list[object]:
    called = rate("antiphon_user_function_calls_total")
    return [
        graph(
            "Calls of a function",
            "Per second by function and outcome: ok, failed (it raised) or timeout.",
            "reqps",
            Query(f"sum by (function, outcome) ({called})", "{{function}}, {{outcome}}"),
        ),
        graph(
            "Time of a function",
            "From asking to its answer, waiting for the main thread included.",
            "s",
            *quantiles("antiphon_user_function_seconds"),
        ),
        graph(
            "Calls of a function under way",
            "One works, the others wait. Many: batches, a faster function, or more replicas.",
            "none",
            Query(
                f"sum by (function) ({select('antiphon_user_function_in_flight')})", "{{function}}"
            ),
        ),
        heat(
            "Scores",
            "How many scores had which value, as the reward function returned them.",
            "none",
            Query(
                f"sum by (le) (increase({select('antiphon_reward_value_bucket')}[{RATE}]))",
                "{{le}}",
            ),
        ),
        graph(
            "Joint actions scored",
            "Per second by outcome: a value, or a score that is missing.",
            "none",
            Query(f"sum by (outcome) ({rate('antiphon_reward_scores_total')})", "{{outcome}}"),
        ),
        graph(
            "Transitions",
            "Joint actions answered per second: with next prompts, or with the branch's end.",
            "none",
            Query(f"sum by (outcome) ({rate('antiphon_transition_results_total')})", "{{outcome}}"),
        ),
    ]


def _processes() -> list[object]:
    service = " * on (namespace, job, instance) group_left (service) " + select(
        "antiphon_build_info"
    )
    names = "{{service}} {{instance}}"
    expiry = select("antiphon_tls_certificate_expiry_timestamp_seconds")
    return [
        graph(
            "Processor",
            "Cores in use.",
            "none",
            Query(rate("process_cpu_seconds_total") + service, names),
        ),
        graph(
            "Memory",
            "Resident memory. What grows without end is a leak.",
            "bytes",
            Query(select("process_resident_memory_bytes") + service, names),
        ),
        graph(
            "Open files",
            "Open file descriptors as a share of the most allowed.",
            "percentunit",
            Query(
                f"({select('process_open_fds')} / {select('process_max_fds')}){service}",
                names,
            ),
            steps=[(None, "green"), (0.8, "red")],
        ),
        figure(
            "Up since",
            "How long each process has been running. A small number is a restart.",
            "s",
            Query(f"(time() - {select('process_start_time_seconds')}){service}", names),
            width=12,
            show=BigValueTextMode.VALUE_AND_NAME,
        ),
        figure(
            "Certificates end in",
            "Time left of each server's certificate; only with TLS.",
            "s",
            Query(f"({expiry} - time()){service}", names),
            width=6,
            show=BigValueTextMode.VALUE_AND_NAME,
            steps=[(None, "red"), (3 * 86400, "orange"), (14 * 86400, "green")],
        ),
        figure(
            "Versions",
            "Processes by version. One run, one version.",
            "none",
            Query(f"count by (version) ({select('antiphon_build_info')})", "{{version}}"),
            width=6,
            show=BigValueTextMode.VALUE_AND_NAME,
        ),
    ]
