"""Server credentials that follow their files: a renewed certificate serves without a restart."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc

from antiphon.services.common.errors import StartError

logger = logging.getLogger(__name__)


class _Files:
    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._stamp = self._stamps()

    def read(self) -> grpc.ServerCertificateConfiguration:
        ca = self._client_ca.read_bytes() if self._client_ca else None
        pair = (self._key.read_bytes(), self._cert.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], ca)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC on every handshake; None keeps what is served."""
        try:
            stamp = self._stamps()
            if stamp == self._stamp:
                return None
            fresh = self.read()
        except OSError:
            logger.exception("cannot read the TLS files; the certificate in use stays")
            return None
        self._stamp = stamp
        logger.info("serving a renewed certificate from %s", self._cert)
        return fresh

    def _stamps(self) -> tuple[int, ...]:
        paths = (self._cert, self._key, self._client_ca)
        return tuple(path.stat().st_mtime_ns for path in paths if path)


def server_credentials(cert: Path, key: Path, client_ca: Path | None) -> grpc.ServerCredentials:
    """Credentials from PEM files.

    Args:
        cert: The server's certificate chain.
        key: Its private key.
        client_ca: Where given, callers must show a certificate signed by it (mTLS).

    Raises:
        StartError: A file cannot be read.
    """
    try:
        files = _Files(cert, key, client_ca)
        first = files.read()
    except OSError as error:
        raise StartError(f"cannot read the TLS file {error.filename}: {error.strerror}") from error
    return grpc.dynamic_ssl_server_credentials(
        first,
        files.changed,  # type: ignore[arg-type]  # None is allowed: keep what is served
        client_ca is not None,
    )
