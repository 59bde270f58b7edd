"""Small checks that the conversions share. A path such as ``prompts[2].seeds`` names a field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from antiphon.clients.types import FieldError

T = TypeVar("T")
N = TypeVar("N", bound=int)

MAX_ID_LENGTH = 1024
"""Most characters of a run's, a task's or a joint action's id."""


def at(parent: str, name: str) -> str:
    """Path of the field `name` within the message at `parent` ("" for the request itself)."""
    return f"{parent}.{name}" if parent else name


def require(condition: bool, field: str, got: object, wanted: str) -> None:
    """Raise FieldError unless `condition` holds."""
    if not condition:
        raise FieldError(field, got, wanted)


def require_text(value: str, field: str) -> str:
    """Return `value`, which must not be empty."""
    require(value != "", field, "nothing", "text that is not empty")
    return value


def require_id(value: str, field: str) -> str:
    """Return `value`, a name that may stand in logs: neither empty, nor long, nor with breaks."""
    require_text(value, field)
    require(
        len(value) <= MAX_ID_LENGTH, field, f"{len(value)} characters", f"at most {MAX_ID_LENGTH}"
    )
    require(value.isprintable(), field, ascii(value)[:60], "printable characters")
    return value


def require_at_most(count: int, most: int, field: str) -> None:
    """Refuse more than `most` entries."""
    require(count <= most, field, f"{count} entries", f"at most {most} in one request")


def require_at_least(value: int, least: int, field: str) -> int:
    """Return `value`, which must be at least `least`."""
    require(value >= least, field, value, f"at least {least}")
    return value


def require_distinct(ids: Iterable[str], field: str) -> None:
    """Raise FieldError naming the ids that occur twice."""
    seen: set[str] = set()
    doubled: list[str] = []
    for identifier in ids:
        if identifier in seen:
            doubled.append(identifier)
        seen.add(identifier)
    require(not doubled, field, f"the id {', '.join(doubled[:5])} more than once", "each id once")


def enum_from_proto(number: N, members: Mapping[N, T], field: str) -> T:
    """Return what a proto enum's number stands for; the unspecified zero is refused."""
    if number not in members:
        got = "nothing" if number == 0 else f"the unknown value {number}"
        raise FieldError(field, got, f"one of {', '.join(map(str, members.values()))}")
    return members[number]


def encodable(build: Callable[[], T], field: str) -> T:
    """Build a message; text that UTF-8 cannot hold, or a number out of range, names `field`."""
    try:
        return build()
    except UnicodeEncodeError as error:
        raise FieldError(field, ascii(error.object)[:60], "text without lone surrogates") from error
