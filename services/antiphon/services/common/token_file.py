"""The token that callers must send, as its file has it: a new one counts without a restart."""

from __future__ import annotations

from pathlib import Path

from antiphon.services.common.changing_file import ChangingFile


class TokenFile:
    """A file that holds a token.

    Raises:
        StartError: The file cannot be read or is empty.
    """

    def __init__(self, path: Path) -> None:
        self._file = ChangingFile(path, "token file", _token)

    def token(self) -> str:
        """The token; the last good one while the file cannot be read or is empty."""
        return self._file.value()


def _token(text: str) -> str:
    token = text.strip()
    if not token:
        raise ValueError("it is empty; write the token into it")
    return token
