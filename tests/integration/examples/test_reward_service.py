"""The Python reward service of the examples scores a training."""

import sys
from pathlib import Path

from tests.integration.examples.reward_training import (
    ROOT,
    assert_rewarded_by_the_task,
    printed_address,
    train,
)
from tests.support.processes import Processes, command, run


def test_the_python_example_keeps_the_contract_and_scores_a_training(
    processes: Processes, tiny_model_folder: Path
) -> None:
    script = str(ROOT / "examples" / "reward_service.py")
    address = printed_address(processes.start("reward", [sys.executable, script, "0"]))
    run(command("check", "reward", address))
    assert_rewarded_by_the_task(train(processes, tiny_model_folder, address))
