"""The token in its file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from antiphon.services.common.errors import StartError
from antiphon.services.common.token_file import TokenFile


def write(path: Path, text: str, *, at: int) -> None:
    path.write_text(text)
    os.utime(path, (at, at))


def test_a_token_must_be_there_and_counts_without_its_line_end(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(StartError, match="cannot read"):
        TokenFile(path)
    path.write_text("  \n")
    with pytest.raises(StartError, match="empty"):
        TokenFile(path)
    path.write_text("secret\n")
    assert TokenFile(path).token() == "secret"


def test_a_new_token_counts_and_a_lost_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write(path, "old", at=1)
    file = TokenFile(path)
    write(path, "", at=2)
    assert file.token() == "old"
    write(path, "new", at=3)
    assert file.token() == "new"
    path.unlink()
    assert file.token() == "new"


def test_a_lost_file_is_logged_once_however_many_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Strangers call too, and must not fill the log."""
    path = tmp_path / "token"
    write(path, "old", at=1)
    file = TokenFile(path)
    told = []
    for _ in range(2):
        path.unlink()
        for _ in range(3):
            assert file.token() == "old"
        told.append(len(caplog.records))
        write(path, "old", at=2)
        assert file.token() == "old"
    assert told == [1, 2]
