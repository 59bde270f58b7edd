"""Metrics of the process, and the RPC metrics that every server has."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from antiphon.services.common.certificates import expiry_seconds
from antiphon.services.common.errors import StartError
from antiphon.services.common.metrics_server import MetricsServer

logger = logging.getLogger(__name__)

_RPC_LABELS = ("grpc_type", "grpc_service", "grpc_method")
_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 900)


@dataclass(frozen=True, slots=True)
class RpcMetrics:
    """Counts and latencies of calls by method."""

    started: Counter
    handled: Counter
    seconds: Histogram


_rpc_metrics: dict[CollectorRegistry, RpcMetrics] = {}
_build_info: dict[CollectorRegistry, Gauge] = {}
_certificate_expiry: dict[CollectorRegistry, Gauge] = {}


def rpc_metrics(registry: CollectorRegistry = REGISTRY) -> RpcMetrics:
    """The RPC metrics in `registry`, made when first asked for."""
    if registry not in _rpc_metrics:
        _rpc_metrics[registry] = RpcMetrics(
            Counter("grpc_server_started_total", "Calls begun.", _RPC_LABELS, registry=registry),
            Counter(
                "grpc_server_handled_total",
                "Calls ended, by status code.",
                (*_RPC_LABELS, "grpc_code"),
                registry=registry,
            ),
            Histogram(
                "grpc_server_handling_seconds",
                "Time from the start of a call to its end.",
                _RPC_LABELS,
                buckets=_SECONDS,
                registry=registry,
            ),
        )
    return _rpc_metrics[registry]


def tell_build(name: str, registry: CollectorRegistry = REGISTRY) -> None:
    """Sets `antiphon_build_info` for the service `name`: version and Python, value 1."""
    if registry not in _build_info:
        _build_info[registry] = Gauge(
            "antiphon_build_info",
            "What runs here; always 1.",
            ("service", "version", "python"),
            registry=registry,
        )
    _build_info[registry].labels(name, version("antiphon"), platform.python_version()).set(1)


def certificate_expiry(registry: CollectorRegistry = REGISTRY) -> Gauge:
    """The metric of the server's certificate in `registry`, made when first asked for."""
    if registry not in _certificate_expiry:
        _certificate_expiry[registry] = Gauge(
            "antiphon_tls_certificate_expiry_timestamp_seconds",
            "When the server's certificate ends, seconds since 1970; only with TLS.",
            registry=registry,
        )
    return _certificate_expiry[registry]


def tell_certificate(path: Path, registry: CollectorRegistry = REGISTRY) -> None:
    """Sets `antiphon_tls_certificate_expiry_timestamp_seconds` from now on, renewals included.

    Raises:
        StartError: The file cannot be read or holds no certificate.
    """
    known = _expiry(path)

    def expiry() -> float:
        nonlocal known
        try:
            known = _expiry(path)
        except StartError as error:
            # What is served is the certificate from before.
            logger.warning("%s", error)
        return known

    certificate_expiry(registry).set_function(expiry)


def _expiry(path: Path) -> float:
    try:
        return expiry_seconds(path.read_text(encoding="ascii", errors="replace"))
    except (OSError, ValueError) as error:
        raise StartError(f"cannot read the certificate {path}: {error}") from error


def serve_metrics(
    host: str, port: int, registry: CollectorRegistry = REGISTRY
) -> tuple[str, Callable[[], None]]:
    """Serves /metrics over HTTP from a thread; returns the bound "host:port" and what ends it."""
    try:
        server = MetricsServer(host, port, registry)
    except OSError as error:
        raise StartError(
            f"cannot serve metrics on {host}:{port}: {error.strerror or error}; choose another "
            "--metrics-port, 0 for any free one, or --no-metrics"
        ) from error
    server.start()
    bound = f"[{host}]" if ":" in host else host
    return f"{bound}:{server.server_port}", server.stop
