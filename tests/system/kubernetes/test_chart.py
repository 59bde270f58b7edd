"""The Helm chart makes the same objects as the overlays."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart, HelmRenderError, HelmValuesError, lint
from tests.system.kubernetes.rendered import (
    K8S,
    ROOT,
    Manifest,
    generated,
    kustomize,
    overlay,
    with_components,
)

pytestmark = pytest.mark.system

SMOL = "HuggingFaceTB/SmolLM2-135M-Instruct"
QWEN = "Qwen/Qwen2.5-{}-Instruct"
VALUES: dict[str, dict[str, Any]] = {
    "cpu": {},
    "gpu-node": {
        "gpu": True,
        "networkPolicies": True,
        "agents": [{"model": QWEN.format("0.5B")}] * 2,
        "modelCache": {"enabled": True, "accessMode": "ReadWriteOnce"},
    },
    "several-nodes": {
        "gpu": True,
        "learner": {"pods": 2},
        "networkPolicies": True,
        "tls": True,
        "monitoring": True,
        "agents": [{"model": QWEN.format("7B"), "replicas": 2}] * 2,
        "reward": {"replicas": 2},
        "transition": {"replicas": 2},
        "modelCache": {"enabled": True},
    },
}
"""Values that make what an overlay makes."""

OF_JOB_SET = {"tls": True, "modelCache": {"enabled": True}, "jobSet": True}
OF_HELM = ("app.kubernetes.io/managed-by", "helm.sh/chart", "helm.sh/resource-policy")


def _chart(values: dict[str, Any], objects: Sequence[Manifest]) -> list[Manifest]:
    """The chart's objects, with run.toml and the task of an overlay."""
    run = generated(objects, "run")["data"]["run.toml"]
    given = {**values, "run": run, "task": generated(objects, "task")["data"]}
    chart = Chart.load(K8S / "chart")
    chart.validate_schema(given)
    files = chart.render(given, name="run", namespace="antiphon")
    texts = [text for path, text in files.items() if path.endswith(".yaml")]
    return [m for text in texts for m in yaml.safe_load_all(text) if m]


def _comparable(objects: Sequence[Manifest]) -> dict[tuple[str, str], Any]:
    """Objects by kind and name, without what says the same in another way.

    That is: the order of lists with names, hashes of ConfigMaps, Helm's own labels. The namespace
    is not the chart's to make.
    """
    found = {}
    for manifest in objects:
        if manifest["kind"] == "Namespace":
            continue
        metadata = dict(manifest["metadata"])
        metadata.setdefault("namespace", "antiphon")
        for field in ("labels", "annotations"):
            kept = {k: v for k, v in metadata.pop(field, {}).items() if k not in OF_HELM}
            metadata |= {field: kept} if kept else {}
        whole = _plain({**manifest, "metadata": metadata})
        key = (manifest["kind"], whole["metadata"]["name"])
        assert key not in found
        found[key] = whole
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        items = [_plain(inner) for inner in value]
        named = all(isinstance(item, dict) and "name" in item for item in items)
        return sorted(items, key=lambda item: str(item["name"])) if named else items
    if isinstance(value, str):
        return re.sub(r"^(run|task)-[0-9a-z]{10}$", r"\1", value)
    return value


@pytest.mark.parametrize("name", VALUES)
def test_it_makes_what_the_overlay_makes(name: str) -> None:
    objects = overlay(name)
    ours, theirs = _comparable(_chart(VALUES[name], objects)), _comparable(objects)
    assert set(ours) == set(theirs)
    for key in theirs:
        assert ours[key] == theirs[key], key


@pytest.mark.parametrize(
    ("mine", "of_agents", "values"),
    [
        (
            ("remote-reward",),
            (),
            {"remoteReward": "reward.example.org:443", "reward": {"function": ""}},
        ),
        ((), ("autoscaling",), {"autoscaling": {"enabled": True}}),
        (
            ("checkpoints-object-storage",),
            (),
            {"checkpoints": {"bucket": "bucket:antiphon/runs"}},
        ),
        (("sharded-learner",), (), {"learner": {"pods": 2}}),
        (("jobset",), (), {"jobSet": True}),
        (("tls", "model-cache", "jobset"), (), OF_JOB_SET),
        ((), ("tgi",), {"agents": [{"model": SMOL, "engine": "tgi"}] * 2}),
        ((), ("vllm",), {"agents": [{"model": SMOL, "engine": "vllm"}] * 2}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_it_makes_what_a_component_makes(
    tmp_path: Path, mine: tuple[str, ...], of_agents: tuple[str, ...], values: dict[str, Any]
) -> None:
    objects = kustomize(with_components(tmp_path, *mine, of_agents=of_agents))
    assert _comparable(_chart(values, objects)) == _comparable(objects)


def test_it_makes_the_learner_of_more_pods_that_the_page_says(tmp_path: Path) -> None:
    """docs/deploy.md, "Components": four pods; on GPUs, one for each process."""
    page = (ROOT / "docs" / "deploy.md").read_text()
    patches = [
        text for text in re.findall(r"```yaml\n(.*?)```", page, re.S) if "--nnodes=4" in text
    ]
    made = with_components(tmp_path, "sharded-learner")
    file = made / "kustomization.yaml"
    kustomization = yaml.safe_load(file.read_text()) | yaml.safe_load(patches[0])
    file.write_text(yaml.safe_dump(kustomization))
    objects = kustomize(made)
    ours = _comparable(_chart({"learner": {"pods": 4}}, objects))
    assert ours == _comparable(objects)
    many = _comparable(_chart({"gpu": True, "learner": {"pods": 4, "processes": 8}}, objects))
    lead, member = many["JobSet", "learner"]["spec"]["replicatedJobs"]
    assert (lead["replicas"], member["replicas"]) == (1, 3)
    for job in (lead, member):
        (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
        assert "--nproc-per-node=8" in container["args"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 8


def test_it_makes_any_number_of_agents() -> None:
    values = {"agents": [{"model": "a"}, {"model": "b"}, {"model": "c", "replicas": 3}]}
    made = _comparable(_chart(values, overlay("cpu")))
    replicas = {name: made["StatefulSet", name]["spec"]["replicas"] for _, name in _sets(made)}
    assert replicas == {"agent-0": 1, "agent-1": 1, "agent-2": 3}


def test_helm_finds_nothing_to_mend() -> None:
    report = lint(K8S / "chart", {"run": "x", "task": {"a.py": "b"}, **VALUES["several-nodes"]})
    found = {message["error"] for message in report["messages"]}
    assert report["errors"] == []
    assert found <= {"icon is recommended"}


def test_a_packaged_chart_holds_the_linked_files(tmp_path: Path) -> None:
    given = {**VALUES["several-nodes"], "run": "x", "task": {"a.py": "b"}}
    folder = Chart.load(K8S / "chart")
    packed = Chart.load(folder.save(tmp_path))
    options = {"name": "run", "namespace": "antiphon"}
    assert packed.render(given, **options) == folder.render(given, **options)


def test_what_is_missing_or_misspelt_is_named() -> None:
    chart = Chart.load(K8S / "chart")
    with pytest.raises(HelmRenderError, match=r"the text of run\.toml"):
        chart.render({}, name="run", namespace="antiphon")
    unlike = {"jobSet": True, "agents": [{"model": "a"}, {"model": "b"}], "run": "x"}
    unlike["task"] = {"a.py": "b"}
    with pytest.raises(HelmRenderError, match="the same model"):
        chart.render(unlike, name="run", namespace="antiphon")
    several = {"learner": {"pods": 2}, "run": "x", "task": {"a.py": "b"}}
    for wrong in ({"checkpoints": {"enabled": False}}, {"checkpoints": {"bucket": "bucket:a"}}):
        with pytest.raises(HelmRenderError, match=r"learner\.pods: all of its pods write"):
            chart.render(several | wrong, name="run", namespace="antiphon")
    with pytest.raises(HelmRenderError, match="its learner is one pod"):
        chart.render(several | {"jobSet": True}, name="run", namespace="antiphon")
    with pytest.raises(HelmValuesError, match="agent"):
        chart.validate_schema({"agent": []})
    with pytest.raises(HelmValuesError, match="model"):
        chart.validate_schema({"agents": [{"replicas": 2}]})


def _sets(made: dict[tuple[str, str], Any]) -> list[tuple[str, str]]:
    return [key for key in made if key[0] == "StatefulSet"]
