"""A cluster of one node: an overlay's objects, and what the controllers make of them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

from tests.support.processes import wait_until
from tests.system.cluster.containers import tail
from tests.system.cluster.kubelet import RunningPod
from tests.system.cluster.names import Names
from tests.system.cluster.network import Network, network
from tests.system.kubernetes.rendered import Manifest, Pod, generated, named, of_kind, pods

Condition = Callable[[], bool]
START_SECONDS = 120.0
KINDS = ("Deployment", "StatefulSet")


class Cluster:
    """Runs the pods of an overlay's workloads.

    Args:
        objects: The overlay, rendered.
        made: The network that its pods join.
        folder: Holds volumes and logs; a PersistentVolumeClaim's is `volumes/NAME`.
    """

    def __init__(self, objects: Sequence[Manifest], made: Network, folder: Path) -> None:
        self.objects = deepcopy(objects)
        self.network = made
        self.folder = folder
        self.running: list[RunningPod] = []
        self.late: list[str] = []
        """Pods that had to be killed when their grace period was over."""
        self._names = Names(made, folder)
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        (folder / "logs").mkdir()

    def close(self) -> None:
        """Kill what still runs."""
        try:
            with ThreadPoolExecutor(max(len(self.running), 1)) as threads:
                list(threads.map(RunningPod.kill, self.running))
        finally:
            self._names.close()

    def of(self, workload: str) -> list[RunningPod]:
        """The pods of a workload that nobody has deleted."""
        return [
            pod
            for pod in list(self.running)
            if pod.pod.workload["metadata"]["name"] == workload and not pod.deleted
        ]

    def volume(self, claim: str) -> Path:
        """What a PersistentVolumeClaim holds."""
        folder = self.folder / "volumes" / claim
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def configure(self, name: str, file: str, text: str) -> None:
        """Change a file of a ConfigMap; pods that are made from now on see it."""
        generated(self.objects, name)["data"][file] = text

    def start(self, *workloads: str) -> None:
        """Make the pods of workloads, all at once, and return when they are ready."""
        for workload in workloads:
            self.scale(workload, self.manifest(workload)["spec"].get("replicas", 1), wait=False)
        self.wait_ready(*workloads)

    def scale(self, workload: str, replicas: int, *, wait: bool = True) -> None:
        """Have a Deployment or a StatefulSet have so many pods."""
        there = self.of(workload)
        for number in range(len(there), replicas):
            self._create(self._template(workload, number))
        self.delete(there[replicas:])
        if wait:
            self.wait_ready(workload)

    def roll(self, workload: str) -> None:
        """Replace all pods, as after a change of their template.

        A StatefulSet ends the highest number before it makes it anew, and waits until that one is
        ready; a Deployment with `maxSurge` ends an old pod when a new one is ready.
        """
        old = self.of(workload)
        surges = self.manifest(workload)["kind"] == "Deployment"
        for pod in reversed(old):
            if not surges:
                self.delete([pod])
            self._create(replace(pod.pod, name=self._named_again(pod.pod)))
            self.wait_ready(workload)
            if surges:
                self.delete([pod])

    def delete(self, gone: Sequence[RunningPod]) -> None:
        """Delete pods, all at once, and return when they have ended."""
        with ThreadPoolExecutor(max(len(gone), 1)) as threads:
            took = list(threads.map(RunningPod.delete, gone))
        for pod, seconds in zip(list(gone), took, strict=True):
            if seconds >= pod.grace:
                self.late.append(pod.pod.name)
            with self._lock:
                self.network.leave(pod.namespace)
                self.running.remove(pod)

    def replace(self, gone: Sequence[RunningPod]) -> None:
        """Delete pods as the drain of their node does: their workloads make others.

        A Deployment does so at once, a StatefulSet when the old pod has ended, as does a Job, which
        sees to that itself.
        """
        again = {kind: [p.pod for p in gone if p.pod.workload["kind"] == kind] for kind in KINDS}
        for pod in again["Deployment"]:
            self.create(pod.workload["metadata"]["name"])
        self.delete(gone)
        for pod in again["StatefulSet"]:
            self._create(pod)

    def create(self, workload: str) -> RunningPod:
        """One more pod of a Deployment or a Job."""
        return self._create(self._template(workload, 0))

    def wait_ready(self, *workloads: str) -> None:
        """Return when all pods of these workloads are ready."""
        self.wait(
            lambda: all(pod.ready for workload in workloads for pod in self.of(workload)),
            f"the pods of {', '.join(workloads)} are ready",
        )

    def wait(
        self, condition: Callable[[], bool], what: str, seconds: float = START_SECONDS
    ) -> None:
        """Return when something holds; AssertionError with the ends of all logs if it does not."""
        try:
            wait_until(condition, timeout=seconds, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from None

    def told(self) -> str:
        """The ends of all logs, what was said last at the end."""
        logs = (self.folder / "logs").iterdir()
        return tail(sorted(logs, key=lambda file: file.stat().st_mtime))

    def _create(self, pod: Pod) -> RunningPod:
        with self._lock:
            namespace, address = self.network.join(pod.workload["metadata"]["name"])
            running = RunningPod(
                pod,
                namespace,
                address,
                self._volumes(pod, address),
                self.folder / "logs" / f"{pod.name}.log",
                self._tell_names,
            )
            self.running.append(running)
        self._tell_names()
        return running

    def manifest(self, workload: str) -> Manifest:
        (found,) = [
            pod.workload
            for pod in pods(self.objects)
            if pod.workload["metadata"]["name"] == workload
        ][:1]
        return found

    def _template(self, workload: str, number: int) -> Pod:
        """The pod of that number of a workload, counted from 0."""
        manifest = self.manifest(workload)
        first = pods([manifest])[0]
        if manifest["kind"] == "StatefulSet":
            return replace(first, name=f"{workload}-{number}")
        return replace(first, name=self._named_again(first))

    def _named_again(self, pod: Pod) -> str:
        """A StatefulSet's pod keeps its name, every other one gets a new one."""
        workload = pod.workload
        if workload["kind"] == "StatefulSet":
            return pod.name
        return f"{workload['metadata']['name']}-{next(self._numbers)}"

    def _volumes(self, pod: Pod, address: IPv4Address) -> dict[str, Path]:
        own = self.folder / "pods" / f"{pod.name}-{address}"
        own.mkdir(parents=True)
        (own / "hosts").write_text(f"127.0.0.1 localhost\n{address} {pod.name}\n")
        (own / "nsswitch.conf").write_text("hosts: files dns\n")
        volumes = {f"/etc/{file}": own / file for file in ("hosts", "nsswitch.conf")}
        volumes["/etc/resolv.conf"] = self._names.resolv_conf
        for place, volume in pod.mounts().items():
            volumes[place] = self._volume(volume, own)
        return volumes

    def _volume(self, volume: Manifest, own: Path) -> Path:
        if claim := volume.get("persistentVolumeClaim"):
            return self.volume(claim["claimName"])
        folder = own / volume["name"]
        folder.mkdir()
        if given := volume.get("configMap"):
            for name, text in named(self.objects, "ConfigMap", given["name"])["data"].items():
                (folder / name).write_text(text)
        else:
            assert "emptyDir" in volume, volume
        return folder

    def _tell_names(self) -> None:
        """What CoreDNS answers: names of Services, and of their StatefulSets' pods."""
        with self._lock:
            told: dict[str, list[IPv4Address]] = {}
            for service in of_kind(self.objects, "Service"):
                name, spec = service["metadata"]["name"], service["spec"]
                for pod in self.running:
                    early = spec.get("publishNotReadyAddresses", False)
                    if not spec["selector"].items() <= dict(pod.pod.labels).items():
                        continue
                    if not (pod.ready or (early and pod.phase == "Running")):
                        continue
                    told.setdefault(name, []).append(pod.address)
                    if pod.pod.workload["spec"].get("serviceName") == name:
                        told.setdefault(f"{pod.pod.name}.{name}", []).append(pod.address)
            self._names.tell(told)


@contextmanager
def cluster(objects: Sequence[Manifest], folder: Path) -> Iterator[Cluster]:
    """A cluster whose pods, network and names are gone at the end."""
    with network() as made:
        running = Cluster(objects, made, folder)
        try:
            yield running
        finally:
            running.close()
