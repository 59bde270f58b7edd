"""The first line of a command's documentation, read without importing the command."""

from __future__ import annotations

import ast
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

_Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def summary(target: str) -> str:
    """First line of the docstring of ``module:name``, or of its module; empty where unknown.

    The source is parsed, not run: a list of commands must not import what they need.
    """
    module, _, name = target.partition(":")
    spec = _find(module)
    loader = spec.loader if spec else None
    source = loader.get_source(loader.name) if isinstance(loader, SourceFileLoader) else None
    if source is None:
        return ""
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, _Documented) and node.name == name:
            return _first_line(node)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return summary(f"{node.module}:{alias.name}")
    return _first_line(tree)


def _find(module: str) -> ModuleSpec | None:
    """The module's spec; unlike `importlib.util.find_spec`, parents are not imported."""
    path = None
    spec: ModuleSpec | None = None
    for part in module.split("."):
        # The last part alone: a dotted name would have the parent looked up among the imported.
        spec = PathFinder.find_spec(part, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
    return spec


def _first_line(node: ast.Module | _Documented) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]
