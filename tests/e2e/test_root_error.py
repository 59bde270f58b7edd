"""What is on the screen once a run of separate processes has failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.conftest import Served
from tests.support.models import save_model
from tests.support.processes import Processes

JUDGE = """
def reward(texts):
    return [weighed(text) for text in texts]

def weighed(text):
    raise LookupError("no weight for this one")
"""
RUN = """
[run]
name = "run"
[magrpo]
num_turns = 1
num_generations = 2
max_new_tokens = 4
temperature = 1.0
[[agents]]
model = "{model}"
addresses = ["{generation}"]
[reward]
address = "{reward}"
[dataset]
prompts = ["a red cat"]
"""


@pytest.mark.timeout(300)
def test_the_root_error_with_the_services_own_traceback_is_the_last_thing_on_the_screen(
    served: Served, tmp_path: Path
) -> None:
    """S8, U2: the user's function in another process, where this machine is told its traceback."""
    save_model(tmp_path / "model", served.model(0), served.tokenizer)
    (tmp_path / "judge.py").write_text(JUDGE)
    with Processes(tmp_path) as processes:
        reward = processes.serve("reward", "reward", "judge:reward").address()
        addresses = {"generation": served.addresses[0], "reward": reward}
        (tmp_path / "run.toml").write_text(RUN.format(model=tmp_path / "model", **addresses))
        train = processes.antiphon("train", "train", "run.toml")
        assert train.wait(timeout=200) == 1
    lines = train.log.strip().splitlines()
    assert lines[-1] == "LookupError: no weight for this one", train.log
    last = "\n".join(lines[-12:])
    assert f"antiphon: Score at {reward} failed: INTERNAL (USER_FUNCTION_FAILED)" in last
    assert "return [weighed(text) for text in texts]" in last
    assert "Traceback" not in train.log.split("antiphon: ")[0], "the learner's own is no help"
