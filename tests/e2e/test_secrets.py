"""Whole runs at debug level, with tokens: none of them is in what is said or left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support import run_folders
from tests.support.models import tiny_folder
from tests.support.processes import Processes, wait_until

MARK = "only-for-those-who-call-"
"""How every token begins."""
CALLERS = f"""
[learner]
roles = ["score", "transition"]
tokens = ["{MARK}learner"]

[operator]
roles = ["watch"]
tokens = ["{MARK}operator"]
"""
JUDGE = """
import pathlib, time

def reward(texts):
    while not pathlib.Path("watched").exists():
        time.sleep(0.02)
    return [float(len(text)) for text in texts]

def feedback(prompt, agent_completions):
    return [f"{prompt} again"]
"""
RUN = """
[run]
log_level = "debug"
[magrpo]
num_turns = 2
num_train_epochs = 1
num_generations = 2
max_new_tokens = 4
temperature = 1.0
early_termination_threshold = "none"
[[agents]]
model = "{folder}/model"
addresses = ["{generation}"]
[reward]
address = "{reward}"
[transition]
address = "{transition}"
[dataset]
prompts = ["a red cat", "two dog b"]
[credentials]
token_file = "{folder}/keys/learner"
[server]
host = "unix:{folder}/learner.sock"
access_file = "{folder}/keys/callers.toml"
"""


def write_keys(folder: Path) -> None:
    folder.mkdir()
    (folder / "callers.toml").write_text(CALLERS)
    for name in ("learner", "operator", "stranger"):
        (folder / name).write_text(f"{MARK}{name}\n")


@pytest.mark.timeout(300)
def test_no_token_is_in_what_a_run_says_and_leaves(tmp_path: Path) -> None:
    """S18: of a run that is let in, of one that is not, and of those who watch."""
    tiny_folder(tmp_path / "model")
    write_keys(tmp_path / "keys")
    (tmp_path / "judge.py").write_text(JUDGE)
    debug, callers = ("--log-level", "debug"), ("--access-file", "keys/callers.toml")
    with Processes(tmp_path) as processes:
        model = ("generation", "--model", "model", "--no-weights", "--run-lease", "0")
        services = {
            "generation": processes.serve(
                "generation", *model, "--token-file", "keys/learner", *debug
            ),
            "reward": processes.serve("reward", "reward", "judge:reward", *callers, *debug),
            "transition": processes.serve(
                "transition", "transition", "judge:feedback", *callers, *debug
            ),
        }
        addresses = {name: service.address() for name, service in services.items()}
        (tmp_path / "run.toml").write_text(RUN.format(folder=tmp_path, **addresses))

        def watch(caller: str) -> tuple[str, ...]:
            return ("watch", f"unix:{tmp_path}/learner.sock", "--token-file", f"keys/{caller}")

        train = processes.antiphon("train", "train", "run.toml", "--set", "run.name=let_in")
        folder = tmp_path / "runs" / "let_in"
        wait_until((folder / "learner.json").exists, timeout=100, what="the learner serves")
        operator, stranger = (processes.antiphon(n, *watch(n)) for n in ("operator", "stranger"))
        assert stranger.wait(timeout=60) == 1
        assert "UNAUTHENTICATED" in stranger.log
        wait_until(lambda: "run folder" in operator.log, timeout=60, what="the operator watches")
        (tmp_path / "watched").touch()
        train.succeed(timeout=100)
        operator.succeed(timeout=60)
        refused = processes.antiphon(
            *("refused", "train", "run.toml", "--set", "run.name=refused"),
            *("--set", f"credentials.token_file={tmp_path}/keys/stranger"),
        )
        assert refused.wait(timeout=120) == 1
        assert "UNAUTHENTICATED" in refused.log.splitlines()[-1]
        for started in (*services.values(), train):
            assert " DEBUG " in started.log, started.name

    assert json.loads((folder / "summary.json").read_text())["prompts"] == 2
    assert MARK not in repr(run_folders.rollout_rows(folder)), "its columns are compressed"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    with_tokens = {path.parent.name for path in files if MARK.encode() in path.read_bytes()}
    assert with_tokens == {"keys"}
