"""How a user's function is called: parameters are matched by name, never by their number."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any

from antiphon.services.common.errors import UserFunctionError

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def function_name(fn: Callable[..., Any]) -> str:
    """The name under which a user knows `fn`: "module.function"."""
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    module = getattr(fn, "__module__", None)
    return name if module in (None, "__main__", "builtins") else f"{module}.{name}"


class Arguments:
    """Fills a function's parameters by their names.

    A parameter whose name is in `reserved` gets the value of that name; ``**kwargs`` gets every
    reserved value that no parameter names. Where `agents` is set, the other parameters without a
    default, then ``*args``, are the agents' completions in order; one with a default keeps it.

    Args:
        fn: The user's function.
        reserved: Names that are filled.
        agents: Whether the other parameters are the agents' completions.

    Raises:
        UserFunctionError: The function is a coroutine function or has a parameter that nothing
            fills.
    """

    def __init__(self, fn: Callable[..., Any], reserved: Sequence[str], *, agents: bool) -> None:
        self.name = function_name(fn)
        self._reserved = tuple(reserved)
        if not callable(fn):
            raise UserFunctionError(self.name, f"got a {type(fn).__name__}, wanted a function")
        if inspect.iscoroutinefunction(fn):
            raise UserFunctionError(self.name, "is a coroutine function; wanted a plain one")
        try:
            self._signature = inspect.signature(fn)
        except (TypeError, ValueError):  # some functions written in C do not tell
            self._signature = inspect.Signature([Parameter("args", Parameter.VAR_POSITIONAL)])
        parameters = self._signature.parameters.values()
        others = [p for p in parameters if p.name not in reserved and p.default is p.empty]
        self._agents = [p.name for p in others if p.kind in _POSITIONAL]
        self._rest = next((p.name for p in others if p.kind is Parameter.VAR_POSITIONAL), None)
        self._keywords = next((p.name for p in others if p.kind is Parameter.VAR_KEYWORD), None)
        unfilled = [p.name for p in others if p.kind is Parameter.KEYWORD_ONLY]
        if not agents:
            unfilled = [*self._agents, *unfilled]
        if unfilled:
            raise UserFunctionError(
                self.name,
                f"nothing fills the parameter {unfilled[0]!r}; give it a default or one of the "
                f"names that are filled: {', '.join(reserved)}",
            )

    def names(self, name: str) -> bool:
        """Whether the function has a parameter of this name."""
        return name in self._signature.parameters

    def check_agents(self, num_agents: int) -> None:
        """Checks that the function takes the completions of so many agents.

        Raises:
            UserFunctionError: It takes another number.
        """
        taken = len(self._agents)
        if num_agents < taken or (num_agents > taken and self._rest is None):
            names = ", ".join(self._agents) or "none"
            raise UserFunctionError(
                self.name,
                f"got {taken} parameters for completions ({names}), wanted {num_agents}, one per "
                "agent without a default, or *completions; an option needs a default, and "
                f"these names are filled with other things: {', '.join(self._reserved)}",
            )

    def bind(
        self, values: Mapping[str, Any], completions: Sequence[Any] = ()
    ) -> inspect.BoundArguments:
        """The arguments of one call.

        Args:
            values: By reserved name.
            completions: One entry per agent.
        """
        self.check_agents(len(completions))
        arguments: dict[str, Any] = dict(zip(self._agents, completions, strict=False))
        if self._rest is not None:
            arguments[self._rest] = tuple(completions[len(self._agents) :])
        parameters = self._signature.parameters
        arguments |= {name: value for name, value in values.items() if name in parameters}
        if self._keywords is not None:
            arguments[self._keywords] = {k: v for k, v in values.items() if k not in parameters}
        ordered = {name: arguments[name] for name in parameters if name in arguments}
        bound = inspect.BoundArguments(self._signature, ordered)
        bound.apply_defaults()
        return bound


def call_once(
    fn: Callable[..., Any], name: str, bound: inspect.BoundArguments, ids: Sequence[str]
) -> Any:
    """Calls the user's function, once.

    Raises:
        UserFunctionError: It raised, or called `sys.exit`; with the user's traceback.
    """
    try:
        return fn(*bound.args, **bound.kwargs)
    except (Exception, SystemExit) as error:
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        trace = "".join(traceback.format_exception(type(error), error, frames))
        text = f"raised {type(error).__name__}: {error}".rstrip(": ")
        raise UserFunctionError(name, text, joint_action_ids=ids, trace=trace.rstrip()) from error


def described(value: Any) -> str:
    """A value as an error shows it: its type and the beginning of its text."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '…'}"
