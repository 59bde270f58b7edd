"""A pod on a node: what the kubelet does with its container, from its first start to its end."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path
from typing import Literal

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.system.cluster.containers import Container
from tests.system.kubernetes.rendered import Manifest, Pod

Phase = Literal["Running", "Succeeded", "Failed"]
LOOK_SECONDS = 0.05


@dataclass
class Probe:
    """A gRPC probe of a container, and what came of it so far.

    Attributes:
        spec: As the manifest has it.
        address: The pod's.
        due: When it is asked next.
        failures: In a row.
    """

    spec: Manifest
    address: IPv4Address
    due: float = field(default_factory=time.monotonic)
    failures: int = 0

    def ask(self) -> bool:
        """Whether the container is well, asked once; counts failures in a row."""
        asked = self.spec["grpc"]
        self.due = time.monotonic() + self.spec.get("periodSeconds", 10)
        with grpc.insecure_channel(f"{self.address}:{asked['port']}") as channel:
            request = health_pb2.HealthCheckRequest(service=asked.get("service", ""))
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(
                    request, timeout=self.spec.get("timeoutSeconds", 1)
                )
                well = answer.status == health_pb2.HealthCheckResponse.SERVING
            except grpc.RpcError:
                well = False
        self.failures = 0 if well else self.failures + 1
        return well

    @property
    def failed(self) -> bool:
        """Whether it failed as often in a row as counts."""
        return self.failures >= self.spec.get("failureThreshold", 3)


class RunningPod:
    """A pod that has been given to a node.

    Args:
        pod: What it is.
        namespace: Its network.
        address: Its own.
        volumes: What its container sees.
        log_file: What its container says.
        changed: Called whenever it becomes ready, or is not any more.
    """

    def __init__(
        self,
        pod: Pod,
        namespace: str,
        address: IPv4Address,
        volumes: Mapping[str, Path],
        log_file: Path,
        changed: Callable[[], None],
    ) -> None:
        self.pod, self.namespace, self.address, self.log_file = pod, namespace, address, log_file
        self.ready = False
        self.deleted = False
        self.starts = 0
        self.phase: Phase = "Running"
        self.exit_code: int | None = None
        self._volumes = volumes
        self._changed = changed
        self._deletion = threading.Event()
        self._starting = threading.Lock()
        self._container: Container | None = None
        self._thread = threading.Thread(target=self._live, name=f"kubelet {pod.name}", daemon=True)
        self._thread.start()

    @property
    def grace(self) -> float:
        """Seconds that it may take to end."""
        return float(self.pod.spec["terminationGracePeriodSeconds"])

    @property
    def imports(self) -> bool:
        """Whether its process has begun to import what it needs, and does not serve yet."""
        return self._container is not None and self._container.imports

    def delete(self) -> float:
        """Take it out of the DNS, have it end, and return how many seconds that took."""
        return self._end(self.grace)

    def kill(self) -> None:
        """Have it end at once, if it has not, and not start again."""
        self._end(0.0)

    def _end(self, grace: float) -> float:
        self.deleted = True
        self._become(False)
        with self._starting:
            self._deletion.set()
        self._tell("is deleted")
        took = self._container.end(grace) if self._container else 0.0
        self._thread.join()
        return took

    def send(self, number: signal.Signals) -> None:
        """Send its container a signal that nobody told the kubelet of."""
        assert self._container is not None
        self._container.send(number)

    def wait(self) -> None:
        """Return when it has ended for good."""
        self._thread.join()

    def _live(self) -> None:
        """Start the container, and again whenever it ends, unless the pod is never restarted."""
        always = self.pod.spec.get("restartPolicy", "Always") == "Always"
        while not self._deletion.wait(self._pause_before_start()):
            # A container that is made while the pod is deleted would be ended by nobody.
            with self._starting:
                if self._deletion.is_set():
                    break
                self._container = Container(self.pod, self.namespace, self._volumes, self.log_file)
            self.starts += 1
            self._tell("is started")
            self._watch(self._container)
            self._become(False)
            self.exit_code = self._container.exit_code
            self._tell(f"has ended with {self.exit_code}")
            if not always:
                break
        if not always:
            self.phase = "Succeeded" if self.exit_code == 0 else "Failed"

    def _pause_before_start(self) -> float:
        """At once, at once, ten seconds later, then twice as long each time."""
        return 0.0 if self.starts < 2 else min(10.0 * 2 ** (self.starts - 2), 300.0)

    def _watch(self, container: Container) -> None:
        """Probe the container until it has ended, or has to."""
        spec = self.pod.container
        startup, readiness, liveness = (
            Probe(spec[f"{kind}Probe"], self.address)
            for kind in ("startup", "readiness", "liveness")
        )
        started = False
        while container.exit_code is None:
            now = math.inf if self.deleted else time.monotonic()
            if not started and now >= startup.due and not self.deleted:
                started = startup.ask()
            elif started and not self.deleted:
                if now >= readiness.due:
                    self._become(readiness.ask() or (self.ready and not readiness.failed))
                if now >= liveness.due:
                    liveness.ask()
            if startup.failed or liveness.failed:
                container.end(self.grace)
            time.sleep(LOOK_SECONDS)

    def _become(self, ready: bool) -> None:
        ready = ready and not self.deleted
        if ready != self.ready:
            self.ready = ready
            self._changed()
            self._tell("is ready" if ready else "is not ready")

    def _tell(self, what: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self.log_file.with_name("kubelet.log").open("a") as log:
            log.write(f"{now} {self.pod.name} at {self.address} {what}\n")
