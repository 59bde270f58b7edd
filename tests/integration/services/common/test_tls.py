"""Who gets in over TLS."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.support.certificates import (
    Certificate,
    CertificateAuthority,
    certificate,
    certificate_authority,
)

from antiphon.clients.endpoint import Endpoint, Tls, open_channel
from antiphon.services.common.server import Server, ServerSettings, StartError


async def reaches(endpoint: Endpoint) -> bool:
    """Whether a call gets through; raises where it fails for another reason than TLS."""
    async with open_channel(endpoint) as channel:
        try:
            request = health_pb2.HealthCheckRequest()
            await health_pb2_grpc.HealthStub(channel).Check(request, timeout=20)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return False
            raise
    return True


def server_with(**settings: Any) -> Server:
    values = ServerSettings(metrics_port=None, **settings)
    return Server(values, name="t", services=[], register=lambda _: None)


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return certificate_authority(tmp_path_factory.mktemp("ca"))


async def test_the_right_ca_gets_in_and_neither_another_nor_plain_text(
    tmp_path: Path, ca: CertificateAuthority
) -> None:
    """S18"""
    own = certificate(tmp_path, "server", ca)
    other_ca = certificate_authority(tmp_path, "other")
    server = server_with(tls_cert=own.cert, tls_key=own.key)
    await server.start()
    try:
        assert await reaches(Endpoint(address=server.address, tls=Tls(ca=ca.cert)))
        assert not await reaches(Endpoint(address=server.address, tls=Tls(ca=other_ca.cert)))
        assert not await reaches(Endpoint(address=server.address))
    finally:
        await server.stop(0)


async def test_mutual_tls_asks_for_a_certificate_of_its_ca(
    tmp_path: Path, ca: CertificateAuthority
) -> None:
    """S18"""
    own, known = certificate(tmp_path, "server", ca), certificate(tmp_path, "client", ca)
    stranger = certificate(tmp_path, "stranger", certificate_authority(tmp_path, "other"))
    server = server_with(tls_cert=own.cert, tls_key=own.key, tls_client_ca=ca.cert)
    await server.start()

    def endpoint(shown: Certificate | None) -> Endpoint:
        pair = {"certificate": shown.cert, "key": shown.key} if shown else {}
        return Endpoint(address=server.address, tls=Tls(ca=ca.cert, **pair))

    try:
        assert await reaches(endpoint(known))
        assert not await reaches(endpoint(stranger))
        assert not await reaches(endpoint(None))
    finally:
        await server.stop(0)


async def test_a_renewed_certificate_serves_without_a_restart(
    tmp_path: Path, ca: CertificateAuthority
) -> None:
    own = certificate(tmp_path, "server", ca)
    new_ca = certificate_authority(tmp_path, "new")
    server = server_with(tls_cert=own.cert, tls_key=own.key)
    await server.start()
    try:
        assert not await reaches(Endpoint(address=server.address, tls=Tls(ca=new_ca.cert)))
        renewed = certificate(tmp_path, "renewed", new_ca)
        for old, new in ((own.cert, renewed.cert), (own.key, renewed.key)):
            old.write_bytes(new.read_bytes())
            os.utime(old, (1, 1))
        assert await reaches(Endpoint(address=server.address, tls=Tls(ca=new_ca.cert)))
    finally:
        await server.stop(0)


async def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    server = server_with(tls_cert=tmp_path / "none.crt", tls_key=tmp_path / "none.key")
    with pytest.raises(StartError, match=r"none\.crt"):
        await server.start()
