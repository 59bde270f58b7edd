"""compose.yaml: what Docker Compose accepts, and what the processes in it understand."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose
from tests.support.command_line import parsed
from tests.support.processes import Processes, run

from antiphon.learner.config.run_file import RunConfig, load_run_config
from antiphon.services.common.server_settings import ServerSettings

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SERVERS = ("agent-0", "agent-1", "reward", "transition")
OURS = (*SERVERS, "learner")


def _arguments(name: str) -> list[str]:
    return [text.replace("${THREADS:-2}", "2") for text in SERVICES[name]["command"]]


def _mounted(name: str, place: str) -> Path:
    """What of this machine a container sees at `place`."""
    (source,) = [v.split(":")[0] for v in SERVICES[name]["volumes"] if v.split(":")[1] == place]
    return ROOT / source


def _run_config() -> RunConfig:
    environ = {k: v.replace("${THREADS:-2}", "2") for k, v in _environment().items()}
    return load_run_config(_mounted("learner", "/etc/antiphon/run.toml"), environ=environ)


def _environment() -> dict[str, str]:
    environment: dict[str, str] = SERVICES["learner"]["environment"]
    return environment


def _server(name: str) -> ServerSettings:
    if name == "learner":
        return _run_config().server
    read = parsed(_arguments(name))
    return ServerSettings(**{field: read[field] for field in ServerSettings.model_fields})


def test_compose_accepts_it() -> None:
    PyCompose.from_json(json.dumps(COMPOSE)).validate()


@pytest.mark.parametrize("name", OURS)
def test_a_process_takes_its_arguments_and_starts(name: str) -> None:
    read = parsed(_arguments(name))
    server = _server(name)
    server.check()
    assert (server.host, server.metrics_host) == ("0.0.0.0", "0.0.0.0")
    assert (server.port, server.health_port, server.metrics_port) == (50051, 50052, 9464)
    grace = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))
    assert grace > server.grace_seconds
    if name == "learner":
        assert str(read["file"]) == "/etc/antiphon/run.toml"
        assert str(_run_config().run.directory) == "/runs"
    if "function" in read:
        module = read["function"].partition(":")[0]
        assert (_mounted(name, "/task") / f"{module}.py").is_file()


@pytest.mark.parametrize("name", OURS)
def test_a_process_has_no_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["build"]["target"] == service["image"].partition("/")[2].partition(":")[0]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert service["image"].endswith(f":{version}")


def test_only_loopback_leads_in() -> None:
    for name, service in SERVICES.items():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name


def test_the_run_finds_its_services() -> None:
    config = _run_config()
    aliases = {
        alias: name
        for name in ("agent-0", "agent-1")
        for alias in SERVICES[name]["networks"]["run"]["aliases"]
    }
    for number, agent in enumerate(config.agents):
        (address,) = [endpoint.address for endpoint in agent.addresses]
        host, _, port = address.rpartition(":")
        name = aliases[host]
        assert name == f"agent-{number}"
        assert int(port) == _server(name).port
        assert parsed(_arguments(name))["model"] == agent.model
    for name, address in (("reward", config.reward), ("transition", config.transition)):
        assert address.address is not None
        assert address.address.address == f"dns:///{name}:{_server(name).port}"


def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    shutil.copytree(_mounted("prometheus", "/etc/prometheus/rules"), tmp_path / "rules")
    text = COMPOSE["configs"]["prometheus"]["content"]
    file = tmp_path / "prometheus.yml"
    file.write_text(text.replace("/etc/prometheus/rules", str(tmp_path / "rules")))
    assert "rules found" in run(["promtool", "check", "config", str(file)])
    scraped = {
        name: (job["job_name"], found["port"])
        for job in yaml.safe_load(text)["scrape_configs"]
        for found in job["dns_sd_configs"]
        for name in found["names"]
    }
    wanted = {name: (name.split("-")[0], _server(name).metrics_port) for name in OURS}
    assert scraped == wanted


def test_grafana_is_given_source_and_dashboards() -> None:
    configs = {c["source"]: c["target"] for c in SERVICES["grafana"]["configs"]}
    for name, kind in (
        ("grafana-datasources", "datasources"),
        ("grafana-dashboards", "dashboards"),
    ):
        assert Path(configs[name]).parent == Path("/etc/grafana/provisioning") / kind
    (source,) = yaml.safe_load(COMPOSE["configs"]["grafana-datasources"]["content"])["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load(COMPOSE["configs"]["grafana-dashboards"]["content"])["providers"]
    folder = _mounted("grafana", provider["options"]["path"])
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (folder / Path(home).relative_to(provider["options"]["path"])).is_file()


def test_the_health_check_tells_a_server_from_none(processes: Processes) -> None:
    program, *command = SERVICES["reward"]["healthcheck"]["test"][1:]
    assert program == "python"
    python = ROOT / ".venv" / "bin" / "python"
    started = processes.serve(
        "reward",
        "reward",
        "length_ratio:length_ratio_reward",
        "--health-port",
        "0",
        cwd=ROOT / "examples",
    )
    port = started.description()["health_address"].rpartition(":")[2]
    asked = [str(python), *(text.replace("50052", port) for text in command)]
    run(asked)
    assert started.terminate() == 0
    done = subprocess.run(asked, capture_output=True, check=False)
    assert done.returncode != 0
