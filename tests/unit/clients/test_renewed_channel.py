"""A channel follows its files, and goes on with what it has while they are broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from antiphon.clients.renewed_channel import RenewedChannel
from antiphon.clients.types import FieldError


class Channel:
    """Says which text its file had, and whether it is closed."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.closed = False

    def unary_unary(self, method: str) -> Any:
        return lambda request: f"{method} {request} by {self.text}"

    async def close(self, grace: float | None) -> None:
        self.closed = grace is None

    def get_state(self, try_to_connect: bool) -> grpc.ChannelConnectivity:
        return grpc.ChannelConnectivity.READY


async def test_a_broken_file_is_logged_once_and_what_was_there_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, opened = tmp_path / "cert.pem", list[Channel]()
    file.write_text("one")

    def open_one() -> Any:
        text = file.read_text()
        if not text:
            raise FieldError("tls.certificate", f"{file}, which is empty", "a file with content")
        opened.append(Channel(text))
        return opened[-1]

    channel = RenewedChannel([file], open_one)
    call = channel.unary_unary("Score")
    assert call("a") == "Score a by one"
    file.write_text("")
    assert [call(letter) for letter in "bcd"] == [f"Score {letter} by one" for letter in "bcd"]
    assert len(caplog.records) == 1
    file.write_text("three")
    assert call("e") == "Score e by three"
    file.write_text("")
    assert call("f") == "Score f by three"
    assert len(caplog.records) == 2
    await channel.close()
    assert [one.closed for one in opened] == [True, True]
