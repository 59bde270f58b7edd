"""What a generation service tells Prometheus; what vLLM tells too has vLLM's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from antiphon.clients.types import FinishReason, PushKind

if TYPE_CHECKING:
    from antiphon.services.generation.batch import Batch

_SECONDS = (0.005, 0.02, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_PREFIX = "antiphon_generation_"


class GenerationMetrics:
    """The metrics in one registry. Times are in seconds.

    Args:
        registry: Where they are exported from.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(_PREFIX + name, text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(_PREFIX + name, text, labels, registry=registry)

        def histogram(
            name: str, text: str, buckets: tuple[float, ...] = _SECONDS, *labels: str
        ) -> Histogram:
            return Histogram(_PREFIX + name, text, labels, buckets=buckets, registry=registry)

        self._info = gauge(
            "info",
            "Whom the service plays and with what; always 1. `agent` is empty before a first call.",
            "agent",
            "model",
            "engine",
        )
        self._told: tuple[str, ...] = ()
        self.requests_running = gauge("num_requests_running", "Generate calls being decoded.")
        self.requests_waiting = gauge("num_requests_waiting", "Jobs waiting for the engine.")
        self.queue = histogram("request_queue_time_seconds", "Wait of a request for its turn.")
        self.prefill = histogram("request_prefill_time_seconds", "Time of one batch's prefill.")
        self.decode = histogram("request_decode_time_seconds", "Time of one batch's decode steps.")
        self.end_to_end = histogram(
            "e2e_request_latency_seconds", "Time of a request from arrival to end."
        )
        self.first_token = histogram(
            "time_to_first_token_seconds", "Time of a request from arrival to its first tokens."
        )
        self.between_tokens = histogram(
            "inter_token_latency_seconds", "Time of one decode step of a batch.", _STEP_SECONDS
        )
        self.prompt_tokens = counter(
            "prompt_tokens_total", "Prompt tokens computed; samples of one prompt share them."
        )
        self.generation_tokens = counter("generation_tokens_total", "Sampled tokens.")
        self.prefix_queries = counter(
            "prefix_cache_queries_total", "Prompt tokens of all rows, shared ones included."
        )
        self.prefix_hits = counter(
            "prefix_cache_hits_total", "Prompt tokens that a row shares with another."
        )
        self.cache_tokens = gauge(
            "kv_cache_tokens", "Places of the key-value cache in use, padding included."
        )
        self.batch_size = histogram("batch_size", "Rows of a batch at its start.", _ROWS)
        self.completion_tokens = histogram(
            "completion_tokens", "Tokens of a finished completion.", _TOKENS
        )
        self.completions = counter(
            "completions_total", "Finished completions by why they ended.", "finish_reason"
        )
        self.requests = counter("requests_total", "Generate calls by how they ended.", "outcome")
        self.weights_version = gauge("weights_version", "The applied weights version.")
        self.push_bytes = counter(
            "push_bytes_total", "Bytes of pushed tensors that arrived.", "kind"
        )
        self.push = histogram(
            "push_seconds", "Time of a push from its header until applied.", _SECONDS, "kind"
        )
        self.push_pause = histogram(
            "push_pause_seconds",
            "Time in which a swap kept the engine from sampling.",
            _SECONDS,
            "kind",
        )
        self.pushes = counter("pushes_total", "Pushes by how they ended.", "kind", "outcome")
        for reason in FinishReason:
            self.completions.labels(reason.value)
        for outcome in ("finished", "failed", "cancelled"):
            self.requests.labels(outcome)
        for kind in PushKind:
            for series in (self.push_bytes, self.push, self.push_pause):
                series.labels(kind.value)
            for outcome in ("applied", "failed"):
                self.pushes.labels(kind.name.lower(), outcome)
        self.step_age = gauge(
            "engine_step_age_seconds",
            "Age of the engine's last step while it has work; 0 while idle.",
        )

    @contextmanager
    def cached(self, batch: Batch) -> Iterator[None]:
        """Tells how much of the cache a batch takes while it is decoded."""
        self.cache_tokens.set_function(lambda: float(batch.cache_tokens))
        try:
            yield
        finally:
            self.cache_tokens.set_function(lambda: 0.0)

    def tell_info(self, agent: int | None, model: str, engine: str) -> None:
        """Says whom the service plays now."""
        now = ("" if agent is None else str(agent), model, engine)
        if now == self._told:
            return
        # The new series comes before the old one goes: a scrape in between finds one at least.
        self._info.labels(*now).set(1)
        if self._told:
            self._info.remove(*self._told)
        self._told = now


@cache
def generation_metrics(registry: CollectorRegistry = REGISTRY) -> GenerationMetrics:
    """The metrics in `registry`, made when first asked for."""
    return GenerationMetrics(registry)
