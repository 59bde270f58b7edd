"""What the clients tell Prometheus: calls in the usual names, and those made again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import grpc
import grpc.aio
from prometheus_client import Counter, Histogram

CallKind = Literal["unary", "server_stream", "client_stream"]

_TRANSIENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_LABELS = ("grpc_type", "grpc_service", "grpc_method")

STARTED = Counter("grpc_client_started_total", "Calls begun.", _LABELS)
HANDLED = Counter(
    "grpc_client_handled_total", "Calls ended, by status code.", (*_LABELS, "grpc_code")
)
SECONDS = Histogram(
    "grpc_client_handling_seconds",
    "Time from the start of a call to its end.",
    _LABELS,
    buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 900),
)
RETRIES = Counter(
    "antiphon_client_retries_total",
    "Calls made again, by the status code of the failure before.",
    ("grpc_method", "grpc_code"),
)


@contextmanager
def counted(kind: CallKind, service: str, method: str) -> Iterator[None]:
    """Counts one call, made within the block."""
    labels = (kind, service, method)
    STARTED.labels(*labels).inc()
    for transient in _TRANSIENT:  # what has not happened is 0, not unknown
        RETRIES.labels(method, transient.name)
    began = time.perf_counter()
    code = grpc.StatusCode.OK
    try:
        yield
    except grpc.aio.AioRpcError as error:
        code = error.code()
        raise
    except (asyncio.CancelledError, GeneratorExit):
        code = grpc.StatusCode.CANCELLED
        raise
    except BaseException:
        code = grpc.StatusCode.UNKNOWN
        raise
    finally:
        HANDLED.labels(*labels, code.name).inc()
        SECONDS.labels(*labels).observe(time.perf_counter() - began)
