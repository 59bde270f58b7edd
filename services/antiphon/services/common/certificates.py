"""When a certificate ends: the one field of X.509 that a metric needs, read without a library."""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION = 0xA0
_FORMATS = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}


def expiry_seconds(pem: str) -> float:
    """When the first certificate of a chain to end does so, in seconds since 1970.

    Raises:
        ValueError: `pem` holds no certificate, or one that is cut short.
    """
    chain = _PEM.findall(pem)
    if not chain:
        raise ValueError("no BEGIN CERTIFICATE in it")
    return min(_not_after(ssl.PEM_cert_to_DER_cert(one)) for one in chain)


def _not_after(der: bytes) -> float:
    """`Validity.notAfter` of a certificate (RFC 5280, section 4.1)."""
    try:
        _, at, _ = _element(der, 0)  # Certificate
        _, at, _ = _element(der, at)  # TBSCertificate
        tag, _, end = _element(der, at)
        at = end if tag == _VERSION else at
        for _ in ("serialNumber", "signature", "issuer"):
            at = _element(der, at)[2]
        _, at, _ = _element(der, at)  # Validity
        at = _element(der, at)[2]  # notBefore
        tag, start, end = _element(der, at)
        time = datetime.strptime(der[start:end].decode(), _FORMATS[tag])
    except (IndexError, KeyError) as error:
        raise ValueError("a certificate that cannot be read") from error
    return time.replace(tzinfo=UTC).timestamp()


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag, start and end of the value of the DER element that begins at `at`."""
    tag, length, start = der[at], der[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length = int.from_bytes(der[start : start + size], "big")
        start += size
    return tag, start, start + length
