"""S18: who may call whom, as a client sees it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.integration.clients.judges import TASKS, Judge, joint_action
from tests.integration.clients.servers import QUICK, within
from tests.support.certificates import (
    Certificate,
    CertificateAuthority,
    certificate,
    certificate_authority,
)

from antiphon.clients.endpoint import Endpoint, Tls
from antiphon.clients.errors import CallError
from antiphon.clients.reward import RewardClient
from antiphon.clients.types import Score


@contextlib.asynccontextmanager
async def serving_tls(
    judge: Judge, own: Certificate, ca: CertificateAuthority
) -> AsyncIterator[str]:
    """A server that wants a client certificate signed by `ca`."""
    credentials = grpc.ssl_server_credentials(
        [(own.key.read_bytes(), own.cert.read_bytes())], ca.cert.read_bytes(), True
    )
    server = grpc.aio.server()
    judge.register(server)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def score(endpoint: Endpoint) -> list[Score]:
    async with RewardClient(endpoint, retry=QUICK) as client:
        result: list[Score] = await within(
            client.score("r", TASKS, [joint_action(3)], timeout=10), 60
        )
        return result


async def test_a_client_with_its_certificate_and_the_right_ca_is_served(tmp_path: Path) -> None:
    """S18: mutual TLS, with a token beside it."""
    ca = certificate_authority(tmp_path)
    server, client = certificate(tmp_path, "server", ca), certificate(tmp_path, "client", ca)
    token = tmp_path / "token"
    token.write_text("s3cret")
    tls = Tls(ca=ca.cert, certificate=client.cert, key=client.key)
    judge = Judge()
    async with serving_tls(judge, server, ca) as target:
        assert await score(Endpoint(address=target, tls=tls, token_file=token)) == [
            Score("j3", 3.0)
        ]
    assert judge.metadata[0]["authorization"] == "Bearer s3cret"


async def test_wrong_ca_and_missing_certificate_end_in_an_error(tmp_path: Path) -> None:
    """S18: a TLS failure is an error after bounded retries, not a hang and not a plain call."""
    ca, other = certificate_authority(tmp_path), certificate_authority(tmp_path, "other")
    server, client = certificate(tmp_path, "server", ca), certificate(tmp_path, "client", ca)
    judge = Judge()
    async with serving_tls(judge, server, ca) as target:
        for tls in (
            Tls(ca=other.cert, certificate=client.cert, key=client.key),
            Tls(ca=ca.cert),
            Tls(ca=ca.cert, certificate=client.cert, key=client.key, server_name="reward.example"),
            None,
        ):
            with pytest.raises(CallError) as error:
                await score(Endpoint(address=target, tls=tls))
            assert error.value.code is grpc.StatusCode.UNAVAILABLE
            assert error.value.attempts == QUICK.attempts
    assert judge.asked == []
