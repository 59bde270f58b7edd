"""Certificates for TLS tests, made with openssl."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """Files of one certificate and its key."""

    cert: Path
    key: Path


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


def certificate_authority(directory: Path, name: str = "ca") -> Certificate:
    """A CA of its own."""
    made = Certificate(directory / f"{name}.crt", directory / f"{name}.key")
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-days", "2", "-subj", f"/CN={name}"),
        *("-keyout", str(made.key), "-out", str(made.cert)),
    )
    return made


def certificate(directory: Path, name: str, ca: Certificate) -> Certificate:
    """A certificate for localhost and 127.0.0.1, signed by `ca`."""
    made = Certificate(directory / f"{name}.crt", directory / f"{name}.key")
    request, extensions = directory / f"{name}.csr", directory / f"{name}.ext"
    extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    _openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-subj", f"/CN={name}", "-keyout", str(made.key), "-out", str(request)),
    )
    _openssl(
        *("x509", "-req", "-in", str(request), "-CA", str(ca.cert), "-CAkey", str(ca.key)),
        *("-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", str(made.cert)),
    )
    return made
