"""OpenTelemetry traces, where they are turned on: spans here, and their context across services.

Nothing of OpenTelemetry is imported before `start`; without it, every function here does nothing.
Where spans go is told by OpenTelemetry's own environment variables (OTEL_EXPORTER_OTLP_ENDPOINT,
OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from antiphon.clients.endpoint import Metadata
from antiphon.clients.types import FieldError

_provider: Any = None
_started = 0


def start(service: str) -> None:
    """Sends this process's spans from now on; each start takes a `stop`.

    Args:
        service: What the process is called in traces; the first start names it.

    Raises:
        FieldError: OpenTelemetry is not installed.
    """
    global _provider, _started
    if _provider is not None:
        _started += 1
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise FieldError(
            "traces", f"on, without {error.name}", "pip install 'antiphon[otel]', or no traces"
        ) from error
    resource = Resource.create({"service.name": f"antiphon-{service}"})
    _provider = TracerProvider(resource=resource)
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _started = 1


def stop() -> None:
    """Ends what `start` began; the last one sends what is not sent yet."""
    global _provider, _started
    _started -= 1
    if _started == 0:
        _provider.shutdown()
        _provider = None


@contextmanager
def span(name: str, **attributes: str | int | float) -> Iterator[None]:
    """A span of this block; what begins within it is a part of it."""
    if _provider is None:
        yield
        return
    with _tracer().start_as_current_span(name, attributes=attributes):
        yield


@contextmanager
def client_span(name: str) -> Iterator[Metadata]:
    """A span of a call made within the block; gives the metadata that links the server's to it."""
    if _provider is None:
        yield ()
        return
    from opentelemetry import propagate, trace

    # Not made current: a stream's consumer, which runs within the block, is no part of the call.
    calling = _tracer().start_span(name, kind=trace.SpanKind.CLIENT)
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(calling))
    try:
        yield tuple(carrier.items())
    except Exception as error:
        calling.record_exception(error)
        calling.set_status(trace.StatusCode.ERROR, type(error).__name__)
        raise
    finally:
        calling.end()


@contextmanager
def server_span(name: str, metadata: Sequence[tuple[str, str | bytes]]) -> Iterator[None]:
    """A span of a call answered within the block, a part of the caller's; `metadata` is its."""
    if _provider is None:
        yield
        return
    from opentelemetry import context, propagate, trace

    carrier = {key: value for key, value in metadata if isinstance(value, str)}
    parent = propagate.extract(carrier)
    answering = _tracer().start_span(name, parent, kind=trace.SpanKind.SERVER)
    # Never detached: the context is that of the task that answers this one call.
    context.attach(trace.set_span_in_context(answering))
    try:
        yield
    except Exception as error:
        answering.record_exception(error)
        answering.set_status(trace.StatusCode.ERROR, type(error).__name__)
        raise
    finally:
        answering.end()


def _tracer() -> Any:
    return _provider.get_tracer("antiphon")
