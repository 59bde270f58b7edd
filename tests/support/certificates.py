"""Certificates for TLS tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Certificate:
    """Files of one certificate and its key."""

    cert: Path
    key: Path


@dataclass(frozen=True)
class CertificateAuthority(Certificate):
    """A CA with its files."""

    authority: trustme.CA


def certificate_authority(directory: Path, name: str = "ca") -> CertificateAuthority:
    """A CA of its own."""
    authority = trustme.CA(organization_name=name)
    made = CertificateAuthority(directory / f"{name}.crt", directory / f"{name}.key", authority)
    authority.cert_pem.write_to_path(made.cert)
    authority.private_key_pem.write_to_path(made.key)
    return made


def certificate(directory: Path, name: str, ca: CertificateAuthority) -> Certificate:
    """A certificate for localhost and 127.0.0.1, signed by `ca`."""
    made = Certificate(directory / f"{name}.crt", directory / f"{name}.key")
    issued = ca.authority.issue_cert("localhost", "127.0.0.1", common_name=name)
    issued.cert_chain_pems[0].write_to_path(made.cert)
    issued.private_key_pem.write_to_path(made.key)
    return made
