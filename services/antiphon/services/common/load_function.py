"""Finding a function by "module:function"."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from antiphon.services.common.errors import StartError


def load_function(name: str) -> Callable[..., Any]:
    """Imports a user's function; modules in the current directory are found, as with `python -m`.

    Args:
        name: "package.module:function"; the function may be inside a class or object.

    Raises:
        StartError: There is no such module or function. What the module itself raises while it is
            imported goes through.
    """
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path or module_name.endswith(".py"):
        wanted = f"{Path(module_name or 'module').stem}:{path or 'function'}"
        raise StartError(f"{name!r} names no function; write module:function, for example {wanted}")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        place: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise StartError(
            f"there is no module {error.name!r}, neither in {here} nor installed; run the command "
            "where the module is, or set PYTHONPATH"
        ) from error
    for part in path.split("."):
        if not hasattr(place, part):
            near = difflib.get_close_matches(part, dir(place), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise StartError(f"{module_name} has no {path!r}{hint}")
        place = getattr(place, part)
    if not callable(place):
        raise StartError(f"{name} is a {type(place).__name__}, wanted a function")
    function: Callable[..., Any] = place
    return function
