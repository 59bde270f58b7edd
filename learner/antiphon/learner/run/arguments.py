"""What a script hands to a trainer, checked for its kind before anything is made of it."""

from __future__ import annotations

from antiphon.clients.types import FieldError


def require(field: str, value: object, kinds: type | tuple[type, ...], wanted: str) -> None:
    """Refuse an argument of another kind; None stands for an argument that was not given.

    Args:
        field: The argument's name.
        value: What came.
        kinds: What it may be.
        wanted: The same in words, and what to write instead.

    Raises:
        FieldError: It is of another kind.
    """
    if value is not None and not isinstance(value, kinds):
        raise FieldError(field, type(value).__name__, wanted)


def require_count(field: str, value: object) -> None:
    """Refuse what is no whole number from 1 on; None stands for an argument that was not given.

    Raises:
        FieldError: It is none.
    """
    if value is not None and (type(value) is not int or value < 1):
        raise FieldError(field, repr(value), "a whole number, 1 or more")
