"""docs/deploy.md: its commands and fragments are of what is here, and say if they are tried."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from helm_python import Chart
from tests.system.kubernetes.rendered import (
    K8S,
    OVERLAYS,
    ROOT,
    generated,
    kustomize,
    named,
    names_of_pods,
    of_kind,
    overlay,
    pods,
    with_components,
)

pytestmark = pytest.mark.system

PAGE = (ROOT / "docs" / "deploy.md").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMMANDS = [
    shlex.split(line.removesuffix(" &"))
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.S)
    for line in re.findall(r"^\$ (.*)$", block, re.M)
]


def _commands(*begin: str) -> list[list[str]]:
    found = [words for words in COMMANDS if words[: len(begin)] == list(begin)]
    assert found, begin
    return found


def _after(words: list[str], option: str) -> list[str]:
    return [after for word, after in pairwise(words) if word == option]


def _fragment(text: str) -> str:
    """The page's YAML that holds this."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    (found,) = [block for block in blocks if text in block]
    return str(found)


def _merge(kustomization: Path, fragment: str) -> None:
    """Put a fragment into a kustomization, as its reader does."""
    made = yaml.safe_load(kustomization.read_text())
    for key, value in yaml.safe_load(fragment).items():
        made[key] = [*made.get(key, []), *value]
    kustomization.write_text(yaml.safe_dump(made))


def test_every_command_says_whether_it_was_tried() -> None:
    sections = re.split(r"^##+ ", PAGE, flags=re.M)[1:]
    for section in sections:
        before = ""
        for part in re.split(r"(```\w+\n.*?```)", section, flags=re.S):
            if part.startswith(("```console", "```dockerfile", "```yaml")):
                assert re.search(r"\b(not\s+tried|tested)\b", before, re.I), part
            else:
                before += part


def test_images_are_built_from_stages_and_arguments_of_the_dockerfile() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.M))
    built = {
        target for words in _commands("docker", "build") for target in _after(words, "--target")
    }
    assert built == {"services", "generation", "learner"}
    assert built <= stages
    pushed = {words[-1].rpartition("/")[2] for words in _commands("docker", "push")}
    assert pushed == built
    table = PAGE.partition("| build argument | |")[2].partition("\n\n")[0]
    arguments = set(re.findall(r"^\| `(\w+)` \|", table, re.M))
    assert arguments == set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.M))
    assert set(re.findall(r"stage `(\w+)`", PAGE)) <= stages


def test_what_is_applied_loaded_and_asked_for_is_there() -> None:
    applied = {words[-1] for words in _commands("kubectl", "apply", "-k")}
    assert applied == {f"k8s/overlays/{name}" for name in OVERLAYS}
    for words in _commands("kubectl", "kustomize"):
        assert kustomize(ROOT / words[-1])
    objects = overlay("cpu")
    (loaded,) = _commands("kind", "load", "docker-image")
    assert set(loaded[3:]) == {pod.container["image"] for pod in pods(objects)}
    for words in _commands("kubectl", "--namespace"):
        assert words[2] == "antiphon"
        for kind, name in re.findall(r"\b(job)/(\S+)", " ".join(words)):
            assert named(objects, kind.capitalize(), name)
    forwarded = [word.partition(":")[2] for words in COMMANDS for word in words if "50070:" in word]
    (learner,) = [pod for pod in pods(objects) if pod.component == "learner"]
    assert {int(port) for port in forwarded} == {learner.ports()["grpc"]}


def test_secrets_that_are_made_are_those_that_pods_read(tmp_path: Path) -> None:
    made = {
        words[words.index("generic") + 1]: Path(word.partition("=")[2]).name
        for words in _commands("kubectl", "--namespace", "antiphon", "create", "secret")
        for word in words
        if word.startswith("--from-file=")
    }
    both = with_components(tmp_path, "remote-reward", "checkpoints-object-storage")
    (learner,) = [pod for pod in pods(kustomize(both)) if pod.component == "learner"]
    volumes = {
        volume["secret"]["secretName"] for volume in learner.spec["volumes"] if "secret" in volume
    }
    assert set(made) == volumes
    text = yaml.safe_dump(learner.spec)
    for file in made.values():
        assert f"/{file}" in text, file


def test_requests_and_gpus_are_what_the_page_says() -> None:
    cores, memory, gpus = 0.0, 0.0, 0
    for pod in pods(overlay("cpu")):
        requests = pod.container["resources"]["requests"]
        cores += float(requests["cpu"].removesuffix("m")) / (1000 if "m" in requests["cpu"] else 1)
        memory += float(requests["memory"][:-2]) / (1024 if "Mi" in requests["memory"] else 1)
    assert f"Requests add up to {cores:.1f} cores and {memory:.2f} GiB" in PAGE
    for pod in pods(overlay("gpu-node")):
        gpus += pod.container["resources"].get("limits", {}).get("nvidia.com/gpu", 0)
    assert gpus == 3
    assert "on one node with three GPUs" in PAGE


def test_functions_are_replaced_as_the_page_says(tmp_path: Path) -> None:
    made = with_components(tmp_path)
    (made / "my_task.py").write_text("def score(first, second): ...\n")
    _merge(made / "kustomization.yaml", _fragment("my_task:score"))
    objects = kustomize(made)
    assert list(generated(objects, "task")["data"]) == ["my_task.py"]
    (reward,) = [pod for pod in pods(objects) if pod.component == "reward"]
    assert reward.environ()["FUNCTION"] == "my_task:score"


def test_another_agent_is_another_folder(tmp_path: Path) -> None:
    made = with_components(tmp_path)
    (made / "agent-2").mkdir()
    (made / "agent-2" / "kustomization.yaml").write_text(_fragment("agent-2/kustomization.yaml"))
    _merge(made / "kustomization.yaml", "resources: [agent-2]")
    names = names_of_pods(kustomize(made))
    (pod,) = names["agent-2-0.agent-2"]
    assert pod.name == "agent-2-0"
    assert "agent-2-0.agent-2:50051" in PAGE


@pytest.mark.parametrize("component", ["sharded-learner", "jobset"])
def test_a_queue_of_kueue_is_a_label_of_the_job_set(tmp_path: Path, component: str) -> None:
    made = with_components(tmp_path, component)
    _merge(made / "kustomization.yaml", _fragment("queue-name"))
    (job_set,) = of_kind(kustomize(made), "JobSet")
    assert job_set["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "training"


def test_the_chart_is_installed_with_what_the_page_gives_it() -> None:
    (words,) = _commands("helm", "install")
    assert (words[3], _after(words, "-n")) == ("k8s/chart", ["antiphon"])
    values: dict[str, object] = {}
    for given in _after(words, "--set-file"):
        name, _, file = given.partition("=")
        text = (ROOT / file).read_text()
        key, _, inner = name.partition(".")
        values[key] = {inner.replace("\\.", "."): text} if inner else text
    chart = Chart.load(K8S / "chart")
    chart.validate_schema(values)
    made = chart.render(values, name=words[2], namespace="antiphon")
    maps = [m for text in made.values() for m in yaml.safe_load_all(text) if m]
    assert list(generated(maps, "task")["data"]) == ["length_ratio.py"]
