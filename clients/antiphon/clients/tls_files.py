"""TLS files, read as what they have to be: a broken one must not replace one that works."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

from antiphon.clients.types import FieldError

Stamps = tuple[tuple[int, int, int] | None, ...]


def stamps_of(files: Sequence[Path]) -> Stamps:
    """What changes when one of the files does."""
    return tuple(map(_stamp, files))


def read_ca(file: Path, field: str) -> bytes:
    """The certificates that a CA file holds, as PEM.

    Raises:
        FieldError: `field`, which names the file: it cannot be read or holds no certificate.
    """
    content = _read(file, field)
    try:
        _context().load_verify_locations(cadata=content.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        raise FieldError(field, f"{file} ({error})", "a PEM file of CA certificates") from None
    return content


def read_pair(
    certificate: Path, key: Path, *, certificate_field: str, key_field: str
) -> tuple[bytes, bytes]:
    """A certificate chain and its private key, as PEM.

    Raises:
        FieldError: One of them cannot be read, or they are no certificate and its key.
    """

    def both() -> tuple[bytes, bytes]:
        return _read(certificate, certificate_field), _read(key, key_field)

    pair = both()
    try:
        # An empty password: a key that wants one is an error, and not a question at a terminal.
        _context().load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        got = f"{certificate} with {key_field} {key} ({error})"
        raise FieldError(
            certificate_field, got, "a PEM certificate and the key that it was made for"
        ) from None
    if pair != both():
        got = f"{certificate}, which is being written"
        raise FieldError(certificate_field, got, "a file that is whole")
    return pair


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # How strong a key has to be is for the handshake to say.
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def _read(file: Path, field: str) -> bytes:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise FieldError(field, f"{file} ({error})", "a readable file") from error
    if not content.strip():
        raise FieldError(field, f"{file}, which is empty", "a file with content")
    return content


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
