"""The token that callers must send, as its file has it: a new one counts without a restart."""

from __future__ import annotations

import logging
from pathlib import Path

from antiphon.services.common.errors import StartError

logger = logging.getLogger(__name__)


class TokenFile:
    """A file that holds a token.

    Raises:
        StartError: The file cannot be read or is empty.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._stamp = path.stat().st_mtime_ns
            self._token = self._read()
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(f"cannot read the token file {path}: {error}") from error
        if not self._token:
            raise StartError(f"the token file {path} is empty; write the token into it")

    def token(self) -> str:
        """The token; the last good one while the file cannot be read or is empty."""
        try:
            stamp = self._path.stat().st_mtime_ns
            if stamp != self._stamp:
                fresh = self._read()
                if fresh:
                    self._stamp, self._token = stamp, fresh
        except (OSError, UnicodeDecodeError):
            logger.warning("cannot read the token file %s; the token in use stays", self._path)
        return self._token

    def _read(self) -> str:
        return self._path.read_text(encoding="utf-8").strip()
