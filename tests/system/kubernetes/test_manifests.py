"""Every overlay and component renders, and is what Kubernetes and its operators accept."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import kubernetes_validate
import pytest
from tests.support.processes import run
from tests.system.kubernetes.rendered import (
    COMPONENTS,
    K8S,
    OF_AGENTS,
    OVERLAYS,
    Manifest,
    Pod,
    generated,
    kustomize,
    of_kind,
    overlay,
    pods,
    with_components,
)

pytestmark = pytest.mark.system

KUBERNETES = "1.37"
CUSTOM = ("cert-manager.io", "monitoring.coreos.com", "jobset.x-k8s.io")


@pytest.fixture(scope="module", params=(*OVERLAYS, *(f"with {name}" for name in COMPONENTS)))
def objects(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> object:
    """The objects of an overlay, or of `cpu` with one component more."""
    name = request.param.removeprefix("with ")
    if request.param in OVERLAYS:
        return overlay(name)
    mine, of_agents = ((), (name,)) if name in OF_AGENTS else ((name,), ())
    if name == "checkpoints-pvc":  # cpu has it
        return overlay("cpu")
    folder = tmp_path_factory.mktemp(name)
    return kustomize(with_components(folder, *mine, of_agents=of_agents))


def test_kubernetes_accepts_it(objects: Sequence[Manifest]) -> None:
    jobs = [job for manifest in of_kind(objects, "JobSet") for job in _jobs(manifest)]
    for manifest in (*objects, *jobs):
        if manifest["apiVersion"].partition("/")[0] in CUSTOM:
            continue
        try:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            name = f"{manifest['kind']} {manifest['metadata']['name']}"
            pytest.fail(f"{name}: {error.message} at {list(error.path)}")


def _jobs(job_set: Manifest) -> list[Manifest]:
    """The Jobs that a JobSet makes."""
    return [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}}
        | {"spec": job["template"]["spec"]}
        for job in job_set["spec"]["replicatedJobs"]
    ]


def test_every_name_that_is_used_is_there(objects: Sequence[Manifest]) -> None:
    """Service accounts, ConfigMaps and claims of pods, and what an autoscaler scales."""
    there = {(m["kind"], m["metadata"]["name"]) for m in objects}
    wanted = set()
    for pod in pods(objects):
        if account := pod.spec.get("serviceAccountName"):
            wanted.add(("ServiceAccount", account))
        for volume in pod.spec["volumes"]:
            if "configMap" in volume:
                wanted.add(("ConfigMap", volume["configMap"]["name"]))
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                wanted.add(("PersistentVolumeClaim", claim))
    for scaler in of_kind(objects, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        wanted.add((target["kind"], target["name"]))
    assert wanted <= there


def test_everything_is_in_the_namespace_and_labelled(objects: Sequence[Manifest]) -> None:
    for manifest in objects:
        if manifest["kind"] == "Namespace":
            continue
        metadata = manifest["metadata"]
        assert metadata.get("namespace") == "antiphon", metadata["name"]
        if manifest["kind"] != "ConfigMap":
            assert metadata["labels"]["app.kubernetes.io/part-of"] == "antiphon", metadata["name"]


def test_a_drain_is_never_blocked(objects: Sequence[Manifest]) -> None:
    """Each workload with replicas has a budget, which lets a single one go."""
    budgets = [budget["spec"] for budget in of_kind(objects, "PodDisruptionBudget")]
    for budget in budgets:
        assert budget["maxUnavailable"] >= 1
        assert "minAvailable" not in budget
    for pod in pods(objects):
        if pod.workload["kind"] in ("Deployment", "StatefulSet"):
            of_pod = [b for b in budgets if _selects(b["selector"], pod)]
            assert len(of_pod) == 1, pod.name


def test_replicas_are_spread_over_nodes(objects: Sequence[Manifest]) -> None:
    for pod in pods(objects):
        if pod.workload["kind"] in ("Deployment", "StatefulSet"):
            (constraint,) = pod.spec["topologySpreadConstraints"]
            assert constraint["topologyKey"] == "kubernetes.io/hostname"
            assert _selects(constraint["labelSelector"], pod), pod.name


def test_who_waits_for_weights_or_watchers_has_an_address_before_it_is_ready(
    objects: Sequence[Manifest],
) -> None:
    """An agent is ready once weights were pushed to it; models may take half an hour to load."""
    early = {
        service["metadata"]["name"]
        for service in of_kind(objects, "Service")
        if service["spec"].get("publishNotReadyAddresses")
    }
    for pod in pods(objects):
        if pod.component == "agent" and pod.workload["kind"] == "StatefulSet":
            assert pod.workload["spec"]["serviceName"] in early
        if pod.component in ("agent", "learner"):
            startup = pod.container["startupProbe"]
            assert startup["periodSeconds"] * startup["failureThreshold"] >= 1800
    assert "learner" in early
    for job_set in of_kind(objects, "JobSet"):
        assert job_set["spec"]["network"]["publishNotReadyAddresses"] is True


def _selects(selector: Manifest, pod: Pod) -> bool:
    labels: Manifest = selector["matchLabels"]
    return labels.items() <= dict(pod.labels).items()


def test_no_pod_has_a_token_or_rights(objects: Sequence[Manifest]) -> None:
    """What the namespace's own `restricted` Pod Security Standard asks, and a read-only root."""
    for pod in pods(objects):
        assert pod.spec["automountServiceAccountToken"] is False
        assert pod.spec["securityContext"]["runAsNonRoot"] is True
        assert pod.spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        containers = (*pod.spec["containers"], *pod.spec.get("initContainers", ()))
        for container in containers:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]


def test_the_task_is_that_of_the_examples() -> None:
    task = generated(overlay("cpu"), "task")["data"]
    example = Path(__file__).parents[3] / "examples" / "length_ratio.py"
    assert task == {"length_ratio.py": example.read_text()}


def test_every_dashboard_is_handed_to_grafana() -> None:
    maps = [
        m["data"]
        for m in of_kind(overlay("several-nodes"), "ConfigMap")
        if m["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
    ]
    handed = {name: text for data in maps for name, text in data.items()}
    there = (K8S / "monitoring" / "dashboards").glob("*.json")
    assert handed == {file.name: file.read_text() for file in there}


def test_pods_are_scraped_at_their_metrics_port() -> None:
    objects = overlay("several-nodes")
    (monitor,) = of_kind(objects, "PodMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    for pod in pods(objects):
        if pod.component in ("model-cache", "member"):
            continue
        assert wanted.items() <= dict(pod.labels).items()
        assert monitor["spec"]["jobLabel"] in pod.labels
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            assert endpoint["port"] in pod.ports()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the schemas of the operators and what checks against them."""
    folder = tmp_path_factory.mktemp("schemas")
    for name in ("package.json", "check_custom_resources.js"):
        shutil.copy(Path(__file__).parent / name, folder)
    run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"], cwd=folder)
    return folder


def test_the_operators_accept_their_resources(objects: Sequence[Manifest], node: Path) -> None:
    groups = ("cert-manager.io", "monitoring.coreos.com")
    custom = [m for m in objects if m["apiVersion"].partition("/")[0] in groups]
    done = subprocess.run(
        ["node", "check_custom_resources.js"],
        input=json.dumps(custom),
        cwd=node,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
