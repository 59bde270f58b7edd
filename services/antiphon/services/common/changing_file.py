"""A file whose content counts as it is now: what is written to it counts without a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from antiphon.services.common.errors import StartError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ChangingFile(Generic[T]):
    """The meaning of a text file, read again when the file changes.

    Args:
        path: The file.
        what: What it is, for messages.
        parse: Gives the text's meaning; raises ValueError, whose message may hold no secret, for
            a text without one.

    Raises:
        StartError: The file cannot be read or has no meaning.
    """

    def __init__(self, path: Path, what: str, parse: Callable[[str], T]) -> None:
        self._path = path
        self._what = what
        self._parse = parse
        self._trouble = ""
        try:
            self._stamp = self._look()
            self._value = self._read()
        except (OSError, ValueError) as error:
            raise StartError(f"cannot read the {what} {path}: {_told(error)}") from None

    def value(self) -> T:
        """What the file says; what it said last while it cannot be read or has no meaning."""
        try:
            stamp = self._look()
            if stamp != self._stamp:
                self._value = self._read()
                self._stamp = stamp
        except (OSError, ValueError) as error:
            self._tell(_told(error))
        else:
            self._trouble = ""
        return self._value

    def _tell(self, trouble: str) -> None:
        """Log what is wrong, once: strangers too have the file looked at, with every call."""
        if trouble == self._trouble:
            return
        self._trouble = trouble
        logger.warning(
            "cannot read the %s %s: %s; what it said before counts", self._what, self._path, trouble
        )

    def _look(self) -> tuple[int, int, int]:
        found = self._path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> T:
        return self._parse(self._path.read_text(encoding="utf-8"))


def _told(error: Exception) -> str:
    # What could not be decoded is left out: it may be the secret.
    return "it is no text in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
