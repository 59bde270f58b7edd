"""Commands that are imported when they are used, and how their failures look."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, entry_points, requires
from typing import Any, ClassVar

import typer
import typer.core
import typer.main

from antiphon.clients.cli.summary import summary
from antiphon.clients.errors import CallError, ContractError
from antiphon.clients.types import FieldError

_LOADED = "antiphon.entry_point"
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


class LazyGroup(typer.core.TyperGroup):
    """A group whose commands are the entry points of `entry_points_group`."""

    entry_points_group: ClassVar[str]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        _keep_examples(self)

    def _entry_points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.entry_points_group)}

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands, those of the entry points included."""
        return sorted({*self._entry_points(), *super().list_commands(ctx)})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command; for an entry point a description of it, until it is resolved."""
        point = self._entry_points().get(cmd_name)
        if point is None:
            return super().get_command(ctx, cmd_name)
        return typer.core.TyperCommand(cmd_name, help=summary(point.value))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that `args` begins with, imported, and what is left of `args`."""
        name, command, rest = super().resolve_command(ctx, args)
        point = self._entry_points().get(args[0])
        if point is not None and command is not None:
            ctx.find_root().meta[_LOADED] = point
            command = _command(point)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what a user can act on is told in a line, without a traceback."""
        if ctx.parent is not None:
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except (CallError, ContractError, FieldError) as error:
            raise _fail(str(error)) from error
        except ModuleNotFoundError as error:
            point = ctx.meta.get(_LOADED)
            extra = _extra_with(error.name or "", point) if point else None
            if extra is None:
                raise
            command = "antiphon" if point.group == "antiphon.commands" else "antiphon serve"
            raise _fail(
                f"{command} {point.name} needs {error.name}, which is not installed: "
                f"pip install 'antiphon[{extra}]'"
            ) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error


def _command(point: EntryPoint) -> Any:
    """The command that an entry point names: a `typer.Typer` or a function."""
    target = point.load()
    if not isinstance(target, typer.Typer):
        function, target = target, typer.Typer(rich_markup_mode=None, add_completion=False)
        target.command(name=point.name, context_settings={"help_option_names": ["-h", "--help"]})(
            function
        )
    command = typer.main.get_command(target)
    command.name = point.name
    _keep_examples(command)
    return command


def _keep_examples(command: Any) -> None:
    """Have help keep the lines of paragraphs with indented lines, instead of filling them."""
    paragraphs = re.split(r"\n(?:[ \t]*\n)+", command.help or "")
    command.help = "\n\n".join(
        f"\b\n{paragraph}"
        if re.search(r"^[ \t]", paragraph, re.MULTILINE) and not paragraph.startswith("\b")
        else paragraph
        for paragraph in paragraphs
    )
    for inner in getattr(command, "commands", {}).values():
        _keep_examples(inner)


def _extra_with(module: str, point: EntryPoint) -> str | None:
    """The extra that brings `module`; where several do, the one named like the command's part."""
    package = module.partition(".")[0].replace("_", "-").lower()
    extras = []
    for requirement in requires("antiphon") or []:
        match = _EXTRA.search(requirement)
        name = re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0].replace("_", "-").lower()
        if match and name == package:
            extras.append(match.group(1))
    portions = point.module.split(".")
    return min(extras, key=lambda extra: extra not in portions, default=None)


def _fail(message: str) -> typer.Exit:
    typer.echo(f"antiphon: {message}", err=True)
    return typer.Exit(1)
