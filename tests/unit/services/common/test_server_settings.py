"""What a server refuses to start with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.services.common.errors import StartError
from antiphon.services.common.server import ServerSettings

CERT, KEY, CA, TOKEN = Path("tls.crt"), Path("tls.key"), Path("ca.crt"), Path("token")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "10.0.0.7", "reward.example", ""])
@pytest.mark.parametrize("partial", [{}, {"token_file": TOKEN}, {"tls_cert": CERT, "tls_key": KEY}])
def test_off_loopback_an_open_server_does_not_start(host: str, partial: dict[str, Any]) -> None:
    """S18: neither without TLS nor without a way to know the caller."""
    with pytest.raises(StartError, match=r"--tls-cert.*--token-file.*--insecure"):
        ServerSettings(host=host, **partial).check()


@pytest.mark.parametrize(
    "guarded",
    [
        {"tls_cert": CERT, "tls_key": KEY, "token_file": TOKEN},
        {"tls_cert": CERT, "tls_key": KEY, "tls_client_ca": CA},
        {"insecure": True},
    ],
)
def test_off_loopback_a_guarded_server_starts(guarded: dict[str, Any]) -> None:
    """S18"""
    ServerSettings(host="0.0.0.0", **guarded).check()


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]", "unix:/run/x.sock"]
)
def test_on_this_machine_no_protection_is_asked_for(host: str) -> None:
    settings = ServerSettings(host=host)
    settings.check()
    assert settings.on_loopback


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tls_cert": CERT}, "--tls-key"),
        ({"tls_key": KEY}, "--tls-cert"),
        ({"tls_client_ca": CA}, "--tls-cert"),
        ({"drain_seconds": 20, "grace_seconds": 10}, "within --grace-seconds 10"),
    ],
)
def test_contradictions_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(StartError, match=message):
        ServerSettings(**values).check()
