"""The manifests of k8s/ as a cluster sees them: rendered by kubectl, variables put in."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
K8S = ROOT / "k8s"
OVERLAYS = tuple(sorted(folder.name for folder in (K8S / "overlays").iterdir()))
COMPONENTS = tuple(sorted(folder.name for folder in (K8S / "components").iterdir()))
OF_AGENTS = ("autoscaling", "tgi", "vllm")
"""Components of an agent's own folder."""

Manifest = dict[str, Any]
WORKLOADS = ("Deployment", "StatefulSet", "Job", "JobSet")


@cache
def kustomize(folder: Path) -> tuple[Manifest, ...]:
    """All objects of a kustomization."""
    beside = str(Path(sys.executable).parent / "kubectl")
    kubectl = shutil.which("kubectl") or beside
    done = subprocess.run(
        [kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def overlay(name: str) -> tuple[Manifest, ...]:
    """All objects of an overlay."""
    return kustomize(K8S / "overlays" / name)


def with_components(folder: Path, *components: str, of_agents: Sequence[str] = ()) -> Path:
    """A copy of k8s/ in `folder` whose overlay `cpu` has more components; returns that overlay.

    Args:
        folder: Where the copy goes.
        components: Components of the overlay.
        of_agents: Components of each agent's own folder.
    """
    copied = folder / "k8s"
    shutil.copytree(K8S, copied)
    made = copied / "overlays" / "cpu"
    for file in (made / "kustomization.yaml", *made.glob("agent-*/kustomization.yaml")):
        added = components if file.parent == made else of_agents
        kustomization = yaml.safe_load(file.read_text())
        back = "../../" if file.parent == made else "../../../"
        mine = kustomization.setdefault("components", [])
        mine += [f"{back}components/{name}" for name in added]
        file.write_text(yaml.safe_dump({k: v for k, v in kustomization.items() if v}))
    return made


def of_kind(objects: Sequence[Manifest], *kinds: str) -> list[Manifest]:
    """The objects of these kinds."""
    return [manifest for manifest in objects if manifest["kind"] in kinds]


def named(objects: Sequence[Manifest], kind: str, name: str) -> Manifest:
    """The one object of this kind and name."""
    (found,) = [m for m in of_kind(objects, kind) if m["metadata"]["name"] == name]
    return found


def generated(objects: Sequence[Manifest], name: str) -> Manifest:
    """The ConfigMap of this name, whatever hash kustomize has put behind it."""
    pattern = re.compile(rf"{name}(-[a-z0-9]{{10}})?")
    maps = of_kind(objects, "ConfigMap")
    (found,) = [m for m in maps if pattern.fullmatch(m["metadata"]["name"])]
    return found


@dataclass(frozen=True)
class Pod:
    """One pod of a workload, as it would run.

    Attributes:
        name: Its name; that of a Job's or Deployment's pod is its workload's.
        workload: Job, StatefulSet or Deployment.
        spec: The pod's spec.
        labels: The pod's labels.
    """

    name: str
    workload: Manifest
    spec: Manifest
    labels: Mapping[str, str]

    @property
    def container(self) -> Manifest:
        """Its first container."""
        first: Manifest = self.spec["containers"][0]
        return first

    @property
    def component(self) -> str:
        """learner, member (of a sharded learner), agent, reward or transition."""
        return self.labels["app.kubernetes.io/component"]

    def environ(self) -> dict[str, str]:
        """The variables that its first container sees, those of the image aside."""
        return {entry["name"]: self._value(entry) for entry in self.container.get("env", ())}

    def arguments(self) -> list[str]:
        """The arguments of `antiphon`; those of torchrun, where it starts it, are left out."""
        given = self.container_arguments()
        if self.container.get("command") != ["torchrun"]:
            return given
        start = given.index("-m")
        assert given[start + 1] == "antiphon.learner"
        return ["train", *given[start + 2 :]]

    def container_arguments(self) -> list[str]:
        """All of its arguments, with $(NAME) replaced as the kubelet does."""
        environ = self.environ()
        return [
            re.sub(r"\$\((\w+)\)", lambda match: environ[match.group(1)], text)
            for text in self.container.get("args", ())
        ]

    def ports(self) -> dict[str, int]:
        """Its ports by name."""
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    def mounts(self) -> dict[str, Manifest]:
        """The volumes of its first container by the folder that they are mounted at."""
        volumes = {volume["name"]: volume for volume in self.spec["volumes"]}
        mounts = self.container["volumeMounts"]
        return {mount["mountPath"]: volumes[mount["name"]] for mount in mounts}

    def _value(self, entry: Manifest) -> str:
        if "value" in entry:
            return str(entry["value"])
        source = entry["valueFrom"]
        if "resourceFieldRef" in source:
            kind, resource = source["resourceFieldRef"]["resource"].split(".")
            return str(_cores(self.container["resources"][kind][resource]))
        path = source["fieldRef"]["fieldPath"]
        label = re.fullmatch(r"metadata\.labels\['(.+)'\]", path)
        known = {"metadata.name": self.name}
        return self.labels[label.group(1)] if label else known[path]


def _cores(text: str) -> int:
    """A CPU quantity in whole cores, rounded up, as the downward API gives it."""
    milli = int(text[:-1]) if text.endswith("m") else 1000 * int(text)
    return -(-milli // 1000)


def pods(objects: Sequence[Manifest]) -> list[Pod]:
    """All pods that the workloads make."""
    return [pod for workload in of_kind(objects, *WORKLOADS) for pod in _pods_of(workload)]


def _pods_of(workload: Manifest) -> Iterator[Pod]:
    name, spec = workload["metadata"]["name"], workload["spec"]
    if workload["kind"] == "JobSet":
        for job in spec["replicatedJobs"]:
            template = job["template"]["spec"]["template"]
            for number in range(job["replicas"]):
                index = {"jobset.sigs.k8s.io/job-index": str(number)}
                labels = {**template["metadata"]["labels"], **index}
                yield Pod(f"{name}-{job['name']}-{number}-0", workload, template["spec"], labels)
        return
    template = spec["template"]
    for number in range(spec.get("replicas", 1)):
        own = f"{name}-{number}" if workload["kind"] == "StatefulSet" else name
        yield Pod(own, workload, template["spec"], template["metadata"]["labels"])


def names_of_pods(objects: Sequence[Manifest]) -> dict[str, list[Pod]]:
    """What the cluster's DNS answers within the namespace: a name to the pods that it stands for.

    A headless Service's name stands for all of its pods, POD.SERVICE for one of a StatefulSet.
    """
    found: dict[str, list[Pod]] = {}
    for service in of_kind(objects, "Service"):
        name, selector = service["metadata"]["name"], service["spec"]["selector"]
        matching = [pod for pod in pods(objects) if selector.items() <= dict(pod.labels).items()]
        found[name] = matching
        for pod in matching:
            if pod.workload["spec"].get("serviceName") == name:
                found[f"{pod.name}.{name}"] = [pod]
    for job_set in of_kind(objects, "JobSet"):
        subdomain = job_set["spec"]["network"]["subdomain"]
        found |= {f"{pod.name}.{subdomain}": [pod] for pod in _pods_of(job_set)}
    return found
