"""The Python reward service of the examples scores a training, whose record is documented."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.examples.reward_training import (
    ROOT,
    assert_rewarded_by_the_task,
    printed_address,
    train,
)
from tests.support import run_folders
from tests.support.processes import Processes, command, run


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Processes, str]]:
    """The example as a process, and where it serves."""
    with Processes(tmp_path_factory.mktemp("service")) as processes:
        script = str(ROOT / "examples" / "reward_service.py")
        yield processes, printed_address(processes.start("reward", [sys.executable, script, "0"]))


@pytest.fixture(scope="module")
def trained(service: tuple[Processes, str], tiny_model_folder: Path) -> Path:
    """The folder of a run that it scored."""
    processes, address = service
    return train(processes, tiny_model_folder, address)


def test_the_example_keeps_the_contract(service: tuple[Processes, str]) -> None:
    run(command("check", "reward", service[1]))


def test_the_example_scores_a_training(trained: Path) -> None:
    assert_rewarded_by_the_task(trained)


def test_every_figure_of_the_record_is_documented(trained: Path) -> None:
    documented = set(re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/metrics.md").read_text(), re.M))
    names = {name for row in run_folders.metrics(trained) for name in row}
    assert "turn_1/reward_mean" in names
    for name in names:
        general = re.sub(r"^(turn|agent)_\d+/", lambda m: f"{m[1]}_{m[1][0].upper()}/", name)
        general = re.sub(r"^seconds/.*", "seconds/STAGE", general)
        assert general in documented, f"{name} is not in docs/metrics.md"
