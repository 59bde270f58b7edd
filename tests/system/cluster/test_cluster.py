"""What a cluster does to a run: it rolls, kills, parts, drains, scales; the run ends right."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.system.cluster.cluster import Cluster, cluster
from tests.system.cluster.models import cached
from tests.system.cluster.run_in_cluster import ClusterRun, metric
from tests.system.kubernetes.rendered import kustomize

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

OVERLAY = Path(__file__).parent / "overlay"
RUN = tomllib.loads((OVERLAY / "run.toml").read_text())
EPOCHS, ROWS = RUN["magrpo"]["num_train_epochs"], len(RUN["dataset"]["prompts"])
MODEL = RUN["agents"][0]["model"]
SERVICES = ("agent-0", "agent-1", "reward", "transition")


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster in which all but the learner are ready."""
    folder = tmp_path_factory.mktemp("cluster")
    cached(folder / "volumes" / "models", MODEL)
    with cluster(kustomize(OVERLAY), folder) as running:
        running.start(*SERVICES)
        yield running


@pytest.fixture(scope="module")
def calm(services: Cluster) -> list[bytes]:
    """The trained agents of a run to which nothing happened."""
    run = ClusterRun(services)
    try:
        return _ended(run, services)
    finally:
        run.job.stop()


@pytest.fixture
def run(services: Cluster, calm: list[bytes]) -> Iterator[ClusterRun]:
    """A run that has trained two prompts."""
    with _running(services) as run:
        yield run


@contextmanager
def _running(services: Cluster) -> Iterator[ClusterRun]:
    run = ClusterRun(services)
    try:
        run.wait_trained(2)
        yield run
    finally:
        run.job.stop()


def _ended(run: ClusterRun, services: Cluster) -> list[bytes]:
    """The agents of a run that has ended as it should."""
    run.job.complete(200)
    run.assert_every_prompt_once(EPOCHS, ROWS)
    assert services.late == [], "pods that did not end within their grace period"
    return run.weights()


def test_all_services_are_rolled(services: Cluster, run: ClusterRun, calm: list[bytes]) -> None:
    with ThreadPoolExecutor() as threads:
        list(threads.map(services.roll, SERVICES))
    assert _ended(run, services) == calm
    assert len(run.job.pods) == 1


def test_the_learner_is_killed(services: Cluster, run: ClusterRun, calm: list[bytes]) -> None:
    run.job.pod.send(signal.SIGKILL)
    assert _ended(run, services) == calm
    killed, resumed = run.job.pods
    assert (killed.exit_code, resumed.exit_code) == (128 + signal.SIGKILL, 0)
    assert killed.address != resumed.address


def test_the_learner_is_killed_and_its_run_folder_is_lost(
    services: Cluster, run: ClusterRun, calm: list[bytes]
) -> None:
    """The Job's next pod begins a new run, once the agents' lease of the dead one has ended."""
    dead = run.run_id
    run.job.pod.send(signal.SIGKILL)
    run.job.pod.wait()
    shutil.rmtree(run.folder)
    services.wait(
        lambda: f"which run {dead} has for another" in run.said,
        "the new run says what it waits for",
    )
    assert _ended(run, services) == calm
    assert run.run_id != dead
    assert [pod.exit_code for pod in run.job.pods] == [128 + signal.SIGKILL, 0]


def test_an_agent_is_away_for_longer_than_calls_are_tried_again(
    services: Cluster, calm: list[bytes]
) -> None:
    text = (OVERLAY / "run.toml").read_text()
    quickly = "[magrpo]\nretry = {attempts = 2, initial_backoff = 0.1}\n"
    services.configure("run", "run.toml", text.replace("[magrpo]\n", quickly))
    try:
        with _running(services) as run:
            services.scale("agent-0", 0)
            services.wait(
                lambda: "waiting for agent 0, at agent-0-0.agent-0:50051, for up to" in run.said,
                "the learner says that it waits",
            )
            services.scale("agent-0", 1)
            assert _ended(run, services) == calm
            assert "agent 0 is asked again, after" in run.said
            assert len(run.job.pods) == 1
    finally:
        services.scale("agent-0", 1)
        services.configure("run", "run.toml", text)


def test_the_reward_service_is_cut_off(
    services: Cluster, run: ClusterRun, calm: list[bytes]
) -> None:
    (reward,) = services.of("reward")
    before = run.metric("antiphon_client_retries_total", grpc_method="Score")
    with services.network.parted(reward.namespace, [run.job.pod.address]):
        services.wait(
            lambda: run.metric("antiphon_client_retries_total", grpc_method="Score") > before,
            "the learner tries again to have something scored",
        )
    assert _ended(run, services) == calm
    assert len(run.job.pods) == 1


def test_the_node_is_drained(services: Cluster, run: ClusterRun, calm: list[bytes]) -> None:
    services.replace([pod for name in (*SERVICES, "learner") for pod in services.of(name)])
    assert _ended(run, services) == calm
    drained, resumed = run.job.pods
    assert (drained.exit_code, resumed.exit_code) == (128 + signal.SIGTERM, 0)


def test_replicas_come_and_go(services: Cluster, calm: list[bytes]) -> None:
    """Behind a Service's name; the new one serves while the run goes on, and then goes again."""
    text = (OVERLAY / "run.toml").read_text()
    services.configure(
        "run", "run.toml", text.replace("agent-0-0.agent-0:50051", "dns:///agent-0:50051")
    )
    try:
        with _running(services) as run:
            services.scale("agent-0", 2, wait=False)
            asyncio.run(run.paused_until(lambda: _serving(run, agent=0) == 2))
            run.wait_trained(run.trained + 2)
            _, new = services.of("agent-0")
            served = "antiphon_generation_requests_total"
            assert metric(f"{new.address}:9464", served, outcome="finished") > 0
            services.scale("agent-0", 1)
            _ended(run, services)
            assert len(run.job.pods) == 1
    finally:
        services.scale("agent-0", 1)
        services.configure("run", "run.toml", text)


def _serving(run: ClusterRun, agent: int) -> float:
    return run.metric("antiphon_learner_replicas", agent=str(agent), state="serving")


def test_pods_that_are_still_starting_end_within_their_grace_period(services: Cluster) -> None:
    """The kernel keeps SIGTERM from the first process of a container that does not handle it."""
    pods = [services.create(name) for name in ("reward", "learner")]
    services.wait(lambda: all(pod.imports for pod in pods), "their processes import")
    services.delete(pods)
    assert services.late == []
