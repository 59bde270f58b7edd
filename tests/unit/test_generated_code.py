"""The code generated from the contract is the contract's."""

import sys
from pathlib import Path

from tests.support.processes import run

ROOT = Path(__file__).parents[2]
CONTRACT = ROOT / "protos" / "antiphon" / "v1"


def test_regenerating_the_protobuf_code_changes_nothing(tmp_path: Path) -> None:
    protos = sorted(CONTRACT.glob("*.proto"))
    assert protos
    outs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    names = [str(path.relative_to(ROOT / "protos")) for path in protos]
    run([sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'protos'}", *outs, *names])

    fresh = {path.name: path.read_text() for path in (tmp_path / "antiphon/v1").iterdir()}
    committed = {path.name: path.read_text() for path in CONTRACT.glob("*_pb2*") if path.is_file()}
    assert sorted(fresh) == sorted(committed)
    stale = [name for name in fresh if fresh[name] != committed[name]]
    assert not stale, f"run the generator again (make protos): {stale} differ from the .proto files"
