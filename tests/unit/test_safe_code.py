"""Nothing of the code runs what it reads: no pickle, no evaluation, no shell, no code of a hub."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PORTIONS = ("clients", "services", "learner")
FILES = sorted(file for portion in PORTIONS for file in (ROOT / portion).rglob("*.py"))
MAY_EVALUATE = {"services/antiphon/services/reward/sandbox/inside.py"}
"""What runs in the sandbox."""

MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
EVALUATION = {"eval", "exec", "compile", "__import__"}
CALLS = {
    ("torch", "load"),
    ("torch", "save"),
    ("os", "system"),
    ("os", "popen"),
    ("yaml", "load"),
    ("yaml", "unsafe_load"),
}
OF_OBJECTS = {
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "scatter_object_list",
    "read_pickle",
}
"""Methods that pickle what they send or read, whosever they are."""
KEYWORDS = {
    ("shell", True),
    ("trust_remote_code", True),
    ("allow_pickle", True),
    ("weights_only", False),
    ("use_safetensors", False),
}


def unsafe(tree: ast.AST, *, may_evaluate: bool = False) -> Iterator[str]:
    """What a module does that runs what it reads."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (a.name for a in names if a.name.partition(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in MODULES:
                yield module
            case ast.Call(func=ast.Name(id=name)) if name in EVALUATION and not may_evaluate:
                yield name
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if (
                owner,
                name,
            ) in CALLS:
                yield f"{owner}.{name}"
            case ast.Attribute(attr=name) if name in OF_OBJECTS:
                yield name
            case ast.keyword(arg=str(name), value=ast.Constant(value=value)) if (
                name,
                value,
            ) in KEYWORDS:
                yield f"{name}={value}"


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import joblib.numpy_pickle",
        "eval(text)",
        "exec(text)",
        "torch.load(path)",
        "yaml.load(text)",
        "os.system(text)",
        "subprocess.run(text, shell=True)",
        "from_pretrained(name, trust_remote_code=True)",
        "numpy.load(path, allow_pickle=True)",
        "dist.broadcast_object_list(values)",
    ],
)
def test_each_of_them_would_be_found(code: str) -> None:
    assert list(unsafe(ast.parse(code)))


def test_nothing_in_the_code_runs_what_it_reads() -> None:
    assert len(FILES) > 200
    found = {}
    for file in FILES:
        name = str(file.relative_to(ROOT))
        tree = ast.parse(file.read_text())
        if problems := list(unsafe(tree, may_evaluate=name in MAY_EVALUATE)):
            found[name] = problems
    assert not found
