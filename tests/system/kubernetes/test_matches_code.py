"""Flags, variables, ports, probes, paths and metric names in the manifests are the code's."""

import importlib.util
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.support.command_line import parsed
from tests.system.kubernetes.rendered import (
    OF_AGENTS,
    OVERLAYS,
    Manifest,
    Pod,
    generated,
    kustomize,
    names_of_pods,
    of_kind,
    overlay,
    pods,
    with_components,
)
from torch.distributed.run import get_args_parser

from antiphon.clients.endpoint import Endpoint
from antiphon.learner.config.run_file import RunConfig, load_run_config
from antiphon.services.common.server_settings import ServerSettings
from antiphon.services.generation.metrics import GenerationMetrics
from antiphon.v1 import generation_pb2, learner_pb2, reward_pb2, transition_pb2

pytestmark = pytest.mark.system

MADE = {
    "job set": ("jobset",),
    "remote reward": ("network-policies", "remote-reward"),
    "TLS and a remote reward": ("tls", "remote-reward"),
    "TLS and a job set": ("tls", "jobset"),
    "a sharded learner": ("sharded-learner",),
    "object storage": ("checkpoints-object-storage",),
    "text-generation-inference": ("tgi",),
    "vLLM": ("vllm",),
}
"""Overlays made of `cpu` and more components."""

SERVICES = {
    "agent": generation_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name,
    "learner": learner_pb2.DESCRIPTOR.services_by_name["LearnerService"].full_name,
    "reward": reward_pb2.DESCRIPTOR.services_by_name["RewardService"].full_name,
    "transition": transition_pb2.DESCRIPTOR.services_by_name["TransitionService"].full_name,
}


@pytest.fixture(scope="module", params=(*OVERLAYS, *MADE))
def objects(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Manifest, ...]:
    """The objects of an overlay."""
    if request.param in OVERLAYS:
        return overlay(request.param)
    folder, names = tmp_path_factory.mktemp("made"), MADE[request.param]
    mine = [name for name in names if name not in OF_AGENTS]
    of_agents = [name for name in names if name in OF_AGENTS]
    return kustomize(with_components(folder, *mine, of_agents=of_agents))


def _of_process(objects: Sequence[Manifest]) -> list[Pod]:
    """The pods that run a process of ours, all but those that fetch models."""
    return [pod for pod in pods(objects) if pod.component in SERVICES]


def _run_config(objects: Sequence[Manifest], tmp_path: Path) -> RunConfig:
    """What the learner reads: its run.toml, under its variables."""
    (learner,) = [pod for pod in pods(objects) if pod.component == "learner"]
    file = tmp_path / "run.toml"
    file.write_text(generated(objects, "run")["data"]["run.toml"])
    return load_run_config(file, environ=learner.environ())


def _server(pod: Pod, objects: Sequence[Manifest], tmp_path: Path) -> ServerSettings:
    """How the pod's process listens, as it reads that itself."""
    read = parsed(pod.arguments())
    if pod.component == "learner":
        return _run_config(objects, tmp_path).server
    return ServerSettings(**{name: read[name] for name in ServerSettings.model_fields})


def test_every_process_takes_its_arguments_and_starts(
    objects: tuple[Manifest, ...], tmp_path: Path
) -> None:
    """Flags exist, values fit, and what a server would refuse to start with is not there."""
    for pod in _of_process(objects):
        server = _server(pod, objects, tmp_path)
        server.check()
        assert not server.on_loopback
        assert server.instance_id == pod.name
        assert server.insecure == (server.tls_cert is None)


def test_ports_are_those_that_the_process_listens_on(
    objects: tuple[Manifest, ...], tmp_path: Path
) -> None:
    for pod in _of_process(objects):
        server = _server(pod, objects, tmp_path)
        assert pod.ports() == {
            "grpc": server.port,
            "health": server.health_port,
            "metrics": server.metrics_port,
        }
        assert server.metrics_host == "0.0.0.0"
    for service in of_kind(objects, "Service"):
        assert service["spec"]["clusterIP"] == "None"
        for port in service["spec"]["ports"]:
            ports = {p.ports()[port["targetPort"]] for p in names_of_pods(objects)[_name(service)]}
            assert ports == {port["port"]}, "a headless Service does not translate ports"


def test_probes_ask_the_health_port_for_services_that_it_knows(
    objects: tuple[Manifest, ...],
) -> None:
    for pod in _of_process(objects):
        probes = {
            kind: pod.container[f"{kind}Probe"]["grpc"]
            for kind in ("startup", "readiness", "liveness")
        }
        assert {probe["port"] for probe in probes.values()} == {pod.ports()["health"]}
        assert probes["readiness"]["service"] == SERVICES[pod.component]
        assert "service" not in probes["startup"]
        assert "service" not in probes["liveness"]


def test_a_pod_gets_longer_than_its_process_takes_to_end(
    objects: tuple[Manifest, ...], tmp_path: Path
) -> None:
    for pod in _of_process(objects):
        server = _server(pod, objects, tmp_path)
        assert pod.spec["terminationGracePeriodSeconds"] > server.grace_seconds
        if pod.component != "learner":
            readiness = pod.container["readinessProbe"]
            # Until the endpoints have dropped it, calls still come.
            assert server.drain_seconds >= readiness["periodSeconds"]


def test_files_are_in_volumes(objects: tuple[Manifest, ...], tmp_path: Path) -> None:
    """Every path that a process is told of is below a folder that is mounted for it."""
    for pod in _of_process(objects):
        read = parsed(pod.arguments())
        server = _server(pod, objects, tmp_path)
        files = [server.tls_cert, server.tls_key, server.tls_client_ca]
        files += [read.get("file"), read.get("work_folder")]
        if pod.component == "learner":
            config = _run_config(objects, tmp_path)
            credentials, reward = config.credentials.tls, config.reward.address
            if credentials is not None:
                files += [credentials.ca, credentials.certificate, credentials.key]
            files += [config.run.directory, reward.token_file if reward else None]
        mounted = [Path(folder) for folder in pod.mounts()]
        for file in filter(None, files):
            assert any(Path(file).is_relative_to(folder) for folder in mounted), file
        assert Path("/tmp") in mounted
        if pod.component in ("agent", "learner"):
            assert Path("/models") in mounted


def test_the_run_finds_its_services(objects: tuple[Manifest, ...], tmp_path: Path) -> None:
    """Each address of run.toml is that of one pod, or of a service; no replica is forgotten."""
    config = _run_config(objects, tmp_path)
    names = names_of_pods(objects)
    for number, agent in enumerate(config.agents):
        listed = [names[_host(address)] for address in agent.addresses]
        mine = [pod for pod in _of_process(objects) if pod.component == "agent"]
        mine = [pod for pod in mine if parsed(pod.arguments())["agent"] == number]
        assert [[pod.name] for pod in mine] == [[pod.name for pod in pods] for pods in listed]
        for pod in mine:
            assert parsed(pod.arguments())["model"] == agent.model
    for component, address in (
        ("reward", config.reward.address),
        ("transition", config.transition.address),
    ):
        assert address is not None
        there = [pod for pod in _of_process(objects) if pod.component == component]
        if there:
            assert address.address.startswith("dns:///")
            assert names[_host(address)] == there
        else:
            assert config.endpoint(address).tls is not None
    assert config.run.name is not None, "--resume latest finds the run by its name"


def test_certificates_name_every_address(objects: tuple[Manifest, ...], tmp_path: Path) -> None:
    """S18: a server's certificate holds the name that it is called by, and a client its own."""
    certificates = {m["spec"]["secretName"]: m["spec"] for m in of_kind(objects, "Certificate")}
    if not certificates:
        return
    config = _run_config(objects, tmp_path)
    names = names_of_pods(objects)
    addresses = [address for agent in config.agents for address in agent.addresses]
    addresses += [a for a in (config.reward.address, config.transition.address) if a]
    for address in addresses:
        for pod in names.get(_host(address), ()):
            secret = pod.mounts()["/etc/tls"]["secret"]["secretName"]
            assert _host(address) in certificates[secret]["dnsNames"]
            assert "server auth" in certificates[secret]["usages"]
            assert "client auth" not in certificates[secret]["usages"]
    assert "client auth" in certificates["learner-tls"]["usages"]


def test_torchrun_brings_the_learners_pods_together(objects: tuple[Manifest, ...]) -> None:
    """All of them start the same program; rank 0 is where the rendezvous and the service are."""
    ranks = [pod for pod in pods(objects) if pod.container.get("command") == ["torchrun"]]
    if not ranks:
        return
    options = [get_args_parser().parse_args(pod.container_arguments()) for pod in ranks]
    names, programs = names_of_pods(objects), {tuple(pod.arguments()) for pod in ranks}
    assert len(programs) == 1
    assert sum(pod.component == "learner" for pod in ranks) == 1
    for pod, told in zip(ranks, options, strict=True):
        leads = pod.component == "learner"
        assert names[told.local_addr] == [pod]
        endpoint, _, port = told.rdzv_endpoint.partition(":")
        assert [one.component for one in names[endpoint]] == ["learner"]
        assert (told.rdzv_backend, port, int(told.nnodes)) == ("c10d", "29500", len(ranks))
        assert told.rdzv_conf.startswith(f"is_host={str(leads).lower()}")
        assert told.shutdown_timeout < pod.spec["terminationGracePeriodSeconds"]
        gpus = pod.container["resources"]["limits"].get("nvidia.com/gpu", 1)
        assert int(told.nproc_per_node) == gpus
        # Ranks go by address.
        assert leads == (told.local_addr == min(one.local_addr for one in options))


def test_functions_are_in_the_task(objects: tuple[Manifest, ...], tmp_path: Path) -> None:
    modules = generated(objects, "task")["data"]
    for pod in _of_process(objects):
        function = parsed(pod.arguments()).get("function")
        if function is None:
            continue
        module, _, name = function.partition(":")
        file = tmp_path / f"{module}.py"
        file.write_text(modules[file.name])
        spec = importlib.util.spec_from_file_location(module, file)
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        assert callable(getattr(loaded, name))
        assert pod.container["workingDir"] in pod.mounts()


def test_scaling_follows_a_metric_of_the_engine(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    GenerationMetrics(registry)
    scaled = kustomize(with_components(tmp_path, of_agents=("autoscaling",)))
    known = {family.name for family in registry.collect()}
    for scaler in of_kind(scaled, "HorizontalPodAutoscaler"):
        for metric in scaler["spec"]["metrics"]:
            assert metric["pods"]["metric"]["name"] in known


def test_images_are_stages_of_the_dockerfile(objects: tuple[Manifest, ...]) -> None:
    root = Path(__file__).parents[3]
    text = (root / "Dockerfile").read_text()
    stages = re.findall(r"^FROM (?:runtime|shell-less|\$\{ENGINE\}) AS (\S+)$", text, re.MULTILINE)
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    for pod in pods(objects):
        name, _, tag = pod.container["image"].partition(":")
        assert name.removeprefix("antiphon/") in stages
        assert tag.partition("-")[0] == version


def _name(manifest: Manifest) -> str:
    name: str = manifest["metadata"]["name"]
    return name


def _host(endpoint: Endpoint) -> str:
    return endpoint.address.removeprefix("dns:///").rpartition(":")[0]
