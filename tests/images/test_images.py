"""The images: small, without rights, and what runs in them starts."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.images.conftest import ROOT, TARGETS, Image
from tests.support.processes import Processes, run, wait_until

pytestmark = [pytest.mark.images, pytest.mark.slow, pytest.mark.timeout(3600)]

LARGEST_MIB = {"services": 300, "generation": 1250, "learner": 1600}
"""Base included; torch is the CPU build."""

Images = Callable[[str], Image]


def _pinned() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return dict(_name_and_version(line) for line in lines)


def _name_and_version(line: str) -> tuple[str, str]:
    name, _, version = line.partition("==")
    return re.sub(r"[-_.]+", "-", name).lower(), version.partition("+")[0]


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_is_small(image: Images, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    size = image(target).bytes / 2**20
    with capsys.disabled():
        print(f"\n{target}: {size:.0f} MiB, base included")
    assert size < LARGEST_MIB[target]


@pytest.mark.parametrize("target", TARGETS)
def test_the_command_line_runs_without_rights(image: Images, target: str, tmp_path: Path) -> None:
    built = image(target)
    assert built.settings["User"] == "10001:10001"
    assert built.settings["Entrypoint"] == ["antiphon"]
    assert "usage: antiphon" in run(built.command(tmp_path, "--help")).lower()


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_has_no_shell(image: Images, target: str, tmp_path: Path) -> None:
    built = image(target)
    for folder in ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin"):
        programs = [file.name for file in (built.root / folder).glob("*") if not file.is_dir()]
        others = [name for name in programs if not re.match("python|(env|rm)$|ldconfig", name)]
        assert others == [], folder
    for shell in ("sh", "bash", "dash", "busybox", "perl", "pip"):
        files = [file for file in (built.root / "usr").rglob(shell) if file.is_file()]
        assert [file for file in files if file.stat().st_mode & 0o111] == [], shell
        with pytest.raises(AssertionError, match="No such file"):
            run(built.command(tmp_path, "-c", "true", entry=shell))


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_lists_what_the_lock_file_pins(image: Images, target: str) -> None:
    bill = json.loads((image(target).root / "usr/share/doc/antiphon/sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    held = dict(_name_and_version(f"{c['name']}=={c['version']}") for c in bill["components"])
    assert held.pop("antiphon")
    pinned = _pinned()
    assert {name: version for name, version in held.items() if pinned.get(name) != version} == {}
    assert ("torch" in held) == (target != "services")


def test_model_written_code_runs_in_the_services_image_and_leaves_nothing(
    image: Images, tmp_path: Path
) -> None:
    """Without protections, as where an engine's seccomp profile refuses namespaces."""
    code = (
        "import pathlib, tempfile\n"
        "from antiphon.services.reward.sandbox import Sandbox\n"
        "sandbox = Sandbox(require=())\n"
        "print(sorted(sandbox.protections))\n"
        'ran = sandbox.run(\'open("left", "w").write("x")\\ndef two(): return 2\','
        " ['assert two() == 2'])\n"
        "print(ran)\n"
        "print([*pathlib.Path(tempfile.gettempdir()).iterdir()])\n"
    )
    told = run(image("services").command(tmp_path, "-c", code, entry="python")).splitlines()
    assert told[-1] == "[]", told


def test_models_can_be_fetched_in_the_generation_image(image: Images, tmp_path: Path) -> None:
    """What the component `model-cache` runs."""
    built = image("generation")
    assert (
        "usage: hf download"
        in run(built.command(tmp_path, "download", "--help", entry="hf")).lower()
    )


def test_a_reward_service_serves_from_the_image(
    image: Images, processes: Processes, tmp_path: Path
) -> None:
    task = tmp_path / "task"
    task.mkdir()
    (task / "lengths.py").write_text("def score(first, second):\n    return [1.0] * len(first)\n")
    tmp_path.chmod(0o755)
    options = ("--port", "0", "--health-port", "0")
    arguments = image("services").command(task, "serve", "reward", "lengths:score", *options)
    started = processes.start("reward", arguments)
    wait_until(
        lambda: "reward serves on" in started.log or started.popen.poll() is not None,
        timeout=120,
        what="the reward service serves",
    )
    found = re.search(r"reward serves on (\S+)", started.log)
    assert found is not None, started.log
    run([str(ROOT / ".venv/bin/antiphon"), "check", "reward", found.group(1)])
    with grpc.insecure_channel(found.group(1)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert started.terminate() == 0


def test_a_training_runs_in_the_learner_image(
    image: Images, processes: Processes, tiny_model_folder: Path, tmp_path: Path
) -> None:
    task = tmp_path / "task"
    task.mkdir()
    (task / "lengths.py").write_text(
        "def score(first, second):\n    return [len(a) - len(b) for a, b in zip(first, second)]\n"
    )
    (task / "run.toml").write_text(
        "[magrpo]\nnum_turns = 1\nnum_train_epochs = 1\nnum_generations = 2\nmax_new_tokens = 4\n"
        '[run]\ndirectory = "/runs"\nname = "small"\n'
        '[[agents]]\nmodel = "/task/model"\n[[agents]]\nmodel = "/task/model"\n'
        '[reward]\nfunction = "lengths:score"\n[dataset]\nprompts = ["one two"]\n'
    )
    run(["cp", "-r", str(tiny_model_folder), str(task / "model")])
    run(["chmod", "-R", "a+rX", str(tmp_path)])
    arguments = image("learner").command(task, "train", "run.toml")
    log = processes.start("learner", arguments).succeed(timeout=600)
    assert "The run has finished: /runs/small/SUMMARY.md" in log
