"""A Job: one pod after the other, until one has succeeded or too many have failed."""

from __future__ import annotations

import threading
from typing import Literal

from tests.system.cluster.cluster import Cluster
from tests.system.cluster.kubelet import RunningPod

FIRST_PAUSE_SECONDS = 10.0


class Job:
    """Runs a Job of the overlay, with its failure policy; a pod that ends is followed by another.

    Args:
        cluster: Where.
        name: The Job's.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.pods: list[RunningPod] = []
        self.state: Literal["Active", "Complete", "Failed"] = "Active"
        self._cluster, self._name = cluster, name
        self._stopping = threading.Event()
        self._creating = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"job {name}", daemon=True)
        self._thread.start()

    @property
    def pod(self) -> RunningPod:
        """The newest one."""
        self._cluster.wait(lambda: bool(self.pods), f"the Job {self._name} has a pod")
        return self.pods[-1]

    def complete(self, seconds: float) -> None:
        """Return when the Job is complete; AssertionError with logs if it fails or takes longer."""
        what = f"the Job {self._name} has ended"
        self._cluster.wait(lambda: self.state != "Active", what, seconds)
        codes = [pod.exit_code for pod in self.pods]
        assert self.state == "Complete", f"pods ended with {codes}\n{self._cluster.told()}"

    def stop(self) -> None:
        """Make no more pods, and delete the present one."""
        with self._creating:
            self._stopping.set()
        self._cluster.delete(self._cluster.of(self._name))
        self._thread.join()

    def _run(self) -> None:
        """Count failures as the Job's `podFailurePolicy` says."""
        spec = self._cluster.manifest(self._name)["spec"]
        rules = spec["podFailurePolicy"]["rules"]
        fatal = [code for rule in rules for code in rule.get("onExitCodes", {}).get("values", ())]
        failures = 0
        while failures <= spec["backoffLimit"]:
            with self._creating:
                if self._stopping.is_set():
                    break
                pod = self._cluster.create(self._name)
                self.pods.append(pod)
            pod.wait()
            if pod.phase == "Succeeded":
                self.state = "Complete"
                return
            if pod.exit_code in fatal:
                break
            if not pod.deleted:  # the drain of a node is nobody's failure
                failures += 1
                self._stopping.wait(FIRST_PAUSE_SECONDS * 2 ** (failures - 1))
        self.state = "Failed"
