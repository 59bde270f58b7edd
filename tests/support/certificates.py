"""Certificates for TLS tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
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


def certificate(
    directory: Path,
    name: str,
    ca: CertificateAuthority,
    *,
    names: Sequence[str] = ("localhost", "127.0.0.1"),
    not_before: datetime | None = None,
    not_after: datetime | None = None,
) -> Certificate:
    """A certificate for `names`, signed by `ca`."""
    made = Certificate(directory / f"{name}.crt", directory / f"{name}.key")
    issued = ca.authority.issue_cert(
        *names, common_name=name, not_before=not_before, not_after=not_after
    )
    issued.cert_chain_pems[0].write_to_path(made.cert)
    issued.private_key_pem.write_to_path(made.key)
    return made
