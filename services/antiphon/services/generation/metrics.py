"""What a generation service tells Prometheus, named like vLLM and text-generation-inference do."""

from __future__ import annotations

from functools import cache

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.005, 0.02, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_PREFIX = "antiphon_generation_"


class GenerationMetrics:
    """The metrics in one registry. Times are in seconds.

    Args:
        registry: Where they are exported from.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(_PREFIX + name, text, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(_PREFIX + name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
            return Histogram(_PREFIX + name, text, buckets=buckets, registry=registry)

        self.requests_running = gauge("requests_running", "Generate calls being decoded.")
        self.requests_waiting = gauge("requests_waiting", "Jobs waiting for the engine.")
        self.queue = histogram("request_queue_seconds", "Wait of a request for its turn.")
        self.prefill = histogram("prefill_seconds", "Time of one batch's prefill.")
        self.decode = histogram("decode_seconds", "Time of one batch's decode steps.")
        self.end_to_end = histogram("request_seconds", "Time of a request from arrival to end.")
        self.prompt_tokens = counter(
            "prompt_tokens_total", "Prompt tokens computed; samples of one prompt share them."
        )
        self.generation_tokens = counter("generation_tokens_total", "Sampled tokens.")
        self.batch_size = histogram("batch_size", "Rows of a batch at its start.", _ROWS)
        self.completion_tokens = histogram(
            "completion_tokens", "Tokens of a finished completion.", _TOKENS
        )
        self.completions = counter(
            "completions_total", "Finished completions by why they ended.", "finish_reason"
        )
        self.requests = counter("requests_total", "Generate calls by how they ended.", "result")
        self.weights_version = gauge("weights_version", "The applied weights version.")
        self.push_bytes = counter("push_bytes_total", "Bytes of pushed tensors that arrived.")
        self.push = histogram("push_seconds", "Time of a push from its header until applied.")
        self.push_pause = histogram(
            "push_pause_seconds", "Time in which a swap kept the engine from sampling."
        )
        self.pushes = counter("pushes_total", "Pushes by how they ended.", "result")
        self.step_age = gauge(
            "engine_step_age_seconds",
            "Age of the engine's last step while it has work; 0 while idle.",
        )


@cache
def generation_metrics(registry: CollectorRegistry = REGISTRY) -> GenerationMetrics:
    """The metrics in `registry`, made when first asked for."""
    return GenerationMetrics(registry)
