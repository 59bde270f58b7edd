"""Who gets in over TLS."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import REGISTRY
from tests.support.certificates import (
    Certificate,
    CertificateAuthority,
    certificate,
    certificate_authority,
)

from antiphon.clients.endpoint import Endpoint, Tls, open_channel
from antiphon.clients.types import FieldError
from antiphon.services.common.certificates import expiry_seconds
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


async def test_a_certificate_whose_time_is_over_or_not_here_yet_opens_nothing(
    tmp_path: Path, ca: CertificateAuthority
) -> None:
    """S18: neither a server's nor a caller's."""
    good = certificate(tmp_path, "good", ca)
    yesterday, tomorrow = (datetime.now(UTC) + timedelta(days=days) for days in (-1, 1))
    expired = certificate(tmp_path, "expired", ca, not_after=yesterday)
    early = certificate(tmp_path, "early", ca, not_before=tomorrow)

    async def opens(server: Certificate, caller: Certificate) -> bool:
        found = server_with(tls_cert=server.cert, tls_key=server.key, tls_client_ca=ca.cert)
        await found.start()
        try:
            tls = Tls(ca=ca.cert, certificate=caller.cert, key=caller.key)
            return await reaches(Endpoint(address=found.address, tls=tls))
        finally:
            await found.stop(0)

    assert await opens(good, good)
    for bad in (expired, early):
        assert not await opens(bad, good)
        assert not await opens(good, bad)


async def test_a_certificate_of_another_name_is_not_the_servers(
    tmp_path: Path, ca: CertificateAuthority
) -> None:
    """S18: of the same CA, and yet not who was called."""
    other = certificate(tmp_path, "other", ca, names=("elsewhere.example.org",))
    server = server_with(tls_cert=other.cert, tls_key=other.key)
    await server.start()
    try:
        assert not await reaches(Endpoint(address=server.address, tls=Tls(ca=ca.cert)))
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


def damaged(pem: bytes) -> bytes:
    """Still with a beginning and an end, and not what it was."""
    lines = pem.splitlines()
    return b"\n".join((lines[0], b"!" + lines[1][1:], *lines[2:]))


@pytest.mark.parametrize("broken", ["certificate", "key", "key of another", "CA", "gone"])
async def test_a_broken_file_changes_nothing_on_either_side_and_is_logged_once(
    tmp_path: Path, ca: CertificateAuthority, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    own, known = certificate(tmp_path, "server", ca), certificate(tmp_path, "client", ca)
    own_ca = tmp_path / "own_ca.pem"
    own_ca.write_bytes(ca.cert.read_bytes())
    server = server_with(tls_cert=own.cert, tls_key=own.key, tls_client_ca=own_ca)
    await server.start()
    tls = Tls(ca=own_ca, certificate=known.cert, key=known.key)
    good = Endpoint(
        address=server.address, tls=tls.model_copy(update={"ca": ca.cert, **copies(known)})
    )
    pairs = (own, known)
    texts = {path: path.read_bytes() for pair in pairs for path in (pair.cert, pair.key)}
    texts[own_ca] = own_ca.read_bytes()
    changes: dict[str, dict[Path, bytes | None]] = {
        "certificate": {pair.cert: damaged(texts[pair.cert]) for pair in pairs},
        "key": {pair.key: damaged(texts[pair.key]) for pair in pairs},
        "key of another": {own.key: texts[known.key], known.key: texts[own.key]},
        "CA": {own_ca: damaged(texts[own_ca])},
        "gone": {own.cert: None, known.cert: None},
    }
    try:
        async with open_channel(Endpoint(address=server.address, tls=tls)) as channel:
            stub, request = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest()
            await stub.Check(request, timeout=20)
            for path, content in changes[broken].items():
                if content is None:
                    path.unlink()
                else:
                    path.write_bytes(content)
            for _ in range(2):
                await stub.Check(request, timeout=20)
                assert await reaches(good)
        told = [record for record in caplog.records if "from before is used" in record.message]
        kept = [record for record in caplog.records if "in use stays" in record.message]
        assert (len(told), len(kept)) == (1, 1)
        assert not any(record.exc_info for record in caplog.records)
        for path, content in texts.items():
            path.write_bytes(content)
        assert await reaches(Endpoint(address=server.address, tls=tls))
    finally:
        await server.stop(0)


def copies(pair: Certificate) -> dict[str, Path]:
    """Files of the same content, which stay as they are."""
    made = {"certificate": pair.cert, "key": pair.key}
    for field, path in made.items():
        made[field] = path.with_name(f"copy_of_{path.name}")
        made[field].write_bytes(path.read_bytes())
    return made


async def test_files_that_do_not_fit_are_refused_at_the_start(
    tmp_path: Path, ca: CertificateAuthority
) -> None:
    own, other = certificate(tmp_path, "server", ca), certificate(tmp_path, "other", ca)
    with pytest.raises(StartError, match=r"--tls-cert: .*server.*--tls-key .*other"):
        await server_with(tls_cert=own.cert, tls_key=other.key).start()
    with pytest.raises(FieldError, match=r"tls.certificate: .*server.*tls.key .*other"):
        open_channel(
            Endpoint(address="a:1", tls=Tls(ca=ca.cert, certificate=own.cert, key=other.key))
        )
    with pytest.raises(FieldError, match=r"tls.ca: .*CA certificates"):
        open_channel(Endpoint(address="a:1", tls=Tls(ca=own.key)))


async def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    server = server_with(tls_cert=tmp_path / "none.crt", tls_key=tmp_path / "none.key")
    with pytest.raises(StartError, match=r"none\.crt"):
        await server.start()


async def test_the_end_of_the_certificate_is_a_metric_that_follows_renewals(
    tmp_path: Path, ca: CertificateAuthority
) -> None:
    own = certificate(tmp_path, "server", ca)
    server = server_with(tls_cert=own.cert, tls_key=own.key)
    name = "antiphon_tls_certificate_expiry_timestamp_seconds"

    def metric() -> float | None:
        return REGISTRY.get_sample_value(name)

    await server.start()
    try:
        before = metric()
        assert before == expiry_seconds(own.cert.read_text())
        issued = ca.authority.issue_cert("localhost", not_after=datetime(2031, 1, 1, tzinfo=UTC))
        issued.cert_chain_pems[0].write_to_path(own.cert)
        assert metric() == datetime(2031, 1, 1, tzinfo=UTC).timestamp() != before
        own.cert.write_text("half a file")
        assert metric() == datetime(2031, 1, 1, tzinfo=UTC).timestamp()
    finally:
        await server.stop(0)
