"""The script of the examples trains, here with a tiny model in place of SmolLM2."""

import sys
from pathlib import Path

from tests.integration.examples.reward_training import ROOT
from tests.support.processes import Processes
from transformers import AutoModelForCausalLM


def test_the_script_trains_two_agents_and_saves_them(
    processes: Processes, tiny_model_folder: Path, tmp_path: Path
) -> None:
    script = str(ROOT / "examples" / "train_script.py")
    started = processes.start("script", [sys.executable, script, str(tiny_model_folder)])
    started.succeed(timeout=240)
    start = AutoModelForCausalLM.from_pretrained(tiny_model_folder)
    for agent in (0, 1):
        folder = tmp_path / "runs" / "script" / f"agent_{agent}"
        trained = AutoModelForCausalLM.from_pretrained(folder)
        pairs = zip(trained.parameters(), start.parameters(), strict=True)
        assert any((a.float() != b.float()).any() for a, b in pairs)
