"""S17: a damaged file that people or a run wrote is named, never half read, secrets not told."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.damage import INPUTS, damaged_files
from tests.integration.services.generation.harness import TIMEOUT

from antiphon.clients.endpoint import Endpoint
from antiphon.clients.names import UnresolvedError, resolve
from antiphon.clients.types import FieldError
from antiphon.learner.checkpoints.resume import ended_for_good, find_resume
from antiphon.learner.config.run_file import load_run_config
from antiphon.learner.evaluation.best_models import BestModels
from antiphon.learner.record.run_folder import RunFolder
from antiphon.services.common.access import Access
from antiphon.services.common.errors import StartError

ROOT = Path(__file__).parents[2]
RUN_FILES = {
    str(path.relative_to(ROOT)): path.read_bytes()
    for pattern in ("examples/*.toml", "k8s/overlays/*/run.toml")
    for path in ROOT.glob(pattern)
}


def test_a_damaged_run_file_is_read_or_refused_by_name(tmp_path: Path) -> None:
    """S17"""
    file, refused = tmp_path / "run.toml", 0
    for damaged in damaged_files("run_file", RUN_FILES):
        file.write_bytes(damaged.data)
        with damaged.kept_if_it_fails():
            try:
                load_run_config(file)
            except FieldError:
                refused += 1
    assert refused > INPUTS // 4


ACCESS = b"""
[learner]
roles = ["generate", "push", "score", "transition"]
tokens = ["only-the-learner-has-this", "and-this-will-be-the-next-one"]
[operator]
roles = ["watch", "control"]
certificates = ["operator.example.org"]
[dashboard]
roles = ["watch"]
tokens = ["the-dashboard-has-this-one"]
"""
SECRETS = ("the-learner-has", "will-be-the-next", "dashboard-has-this")


def test_a_damaged_access_file_is_read_or_refused_without_telling_secrets(tmp_path: Path) -> None:
    """S17, S18"""
    file, refused = tmp_path / "access.toml", 0
    for damaged in damaged_files("access_file", {"access.toml": ACCESS}):
        file.write_bytes(damaged.data)
        with damaged.kept_if_it_fails():
            told = ""
            try:
                Access(None, file, certificates_shown=True)
            except StartError as error:
                refused, told = refused + 1, str(error)
            assert [secret for secret in SECRETS if secret in told] == []
    assert refused > INPUTS // 4


ADDRESSES = b"""# the replicas of agent 0
10.0.0.2:50051
[fd00::3]:50051   # the new one
replica-3.example.org:50051
unix:/run/replica.sock
"""


async def test_a_damaged_list_of_addresses_is_read_or_refused(tmp_path: Path) -> None:
    """S17"""
    file, refused = tmp_path / "agent_0.replicas", 0
    for damaged in damaged_files("address_list", {"agent_0.replicas": ADDRESSES}):
        file.write_bytes(damaged.data)
        with damaged.kept_if_it_fails():
            told = str(file)
            try:
                await resolve(Endpoint(address=f"file://{file}"), timeout=TIMEOUT)
            except (FieldError, UnresolvedError) as error:
                refused, told = refused + 1, str(error)
            assert str(file) in told
    assert refused > INPUTS // 4


METRIC = "eval/turn_1/reward_mean"


def best_models(folder: RunFolder) -> BestModels:
    return BestModels(folder.path, metric=METRIC, mode="max", save=Path.mkdir)


def test_a_damaged_run_folder_is_resumed_or_refused_by_name(tmp_path: Path) -> None:
    """S17: of a run without a checkpoint, where each of these files is read."""
    made = RunFolder.create(tmp_path, "run")
    made.next_incarnation(0)
    made.keep_checkpoints_in(tmp_path / "elsewhere")
    made.write_json("summary.json", {"state": "stopped", "epochs": 2})
    best = best_models(made)
    best.keep(0.25, {"epoch": 1})
    names = ("run.json", "summary.json", "best/best.json")
    good = {name: (made.path / name).read_bytes() for name in names}
    refused = 0
    for damaged in damaged_files("run_folder", good):
        for name, data in {**good, damaged.file: damaged.data}.items():
            (made.path / name).write_bytes(data)
        with damaged.kept_if_it_fails():
            told = damaged.file
            try:
                found = find_resume(made.path, runs=tmp_path)
                assert found is not None
                ended_for_good(found.folder, found.checkpoint)
                best_models(found.folder).load_state_dict(best.state_dict())
                before = found.folder.incarnation
                assert found.folder.next_incarnation(0) == before + 1
            except FieldError as error:
                refused, told = refused + 1, str(error)
            assert damaged.file in told
    assert refused > INPUTS // 4
