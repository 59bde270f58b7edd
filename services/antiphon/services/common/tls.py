"""Server credentials that follow their files: a renewed certificate serves without a restart."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc

from antiphon.clients.tls_files import read_ca, read_pair, stamps_of
from antiphon.clients.types import FieldError
from antiphon.services.common.errors import StartError

logger = logging.getLogger(__name__)


class _Files:
    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._all = [path for path in (cert, key, client_ca) if path]
        self._stamps = stamps_of(self._all)
        self._trouble = ""

    def read(self) -> grpc.ServerCertificateConfiguration:
        ca = read_ca(self._client_ca, "--tls-client-ca") if self._client_ca else None
        cert, key = read_pair(
            self._cert, self._key, certificate_field="--tls-cert", key_field="--tls-key"
        )
        return grpc.ssl_server_certificate_configuration([(key, cert)], ca)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC on every handshake; None keeps what is served."""
        stamps = stamps_of(self._all)
        if stamps == self._stamps:
            return None
        try:
            fresh = self.read()
        except FieldError as error:
            if str(error) != self._trouble:  # once, not at every handshake
                logger.warning("%s; the certificate in use stays", error)
            self._trouble = str(error)
            return None
        self._trouble = ""
        self._stamps = stamps
        logger.info("serving a renewed certificate from %s", self._cert)
        return fresh


def server_credentials(cert: Path, key: Path, client_ca: Path | None) -> grpc.ServerCredentials:
    """Credentials from PEM files.

    Args:
        cert: The server's certificate chain.
        key: Its private key.
        client_ca: Where given, callers must show a certificate signed by it (mTLS).

    Raises:
        StartError: A file cannot be read, or is not what it should be.
    """
    files = _Files(cert, key, client_ca)
    try:
        first = files.read()
    except FieldError as error:
        raise StartError(f"cannot use the TLS files: {error}") from error
    return grpc.dynamic_ssl_server_credentials(
        first,
        files.changed,  # type: ignore[arg-type]  # None is allowed: keep what is served
        client_ca is not None,
    )
