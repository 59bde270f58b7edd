"""When certificates end, held against a library that reads all of them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import trustme
from cryptography import x509

from antiphon.services.common.certificates import expiry_seconds

CA = trustme.CA(organization_name="singers")


def issued(year: int) -> trustme.LeafCert:
    return CA.issue_cert("localhost", not_after=datetime(year, 3, 4, 5, 6, 7, tzinfo=UTC))


@pytest.mark.parametrize("year", [2001, 2031, 2049, 2050, 2150])
def test_the_end_is_that_of_the_certificate(year: int) -> None:
    pem = issued(year).cert_chain_pems[0].bytes()
    read = x509.load_pem_x509_certificate(pem).not_valid_after_utc
    assert read.year == year
    assert expiry_seconds(pem.decode()) == read.timestamp()


def test_a_chain_ends_with_its_first_certificate_to_end() -> None:
    late, soon = (issued(year).cert_chain_pems[0].bytes().decode() for year in (2040, 2030))
    assert expiry_seconds(f"the leaf\n{late}\nand then\n{soon}") == expiry_seconds(soon)


@pytest.mark.parametrize(
    "pem",
    [
        "",
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "-----BEGIN CERTIFICATE-----\n\n-----END CERTIFICATE-----",
    ],
)
def test_what_is_no_certificate_is_refused(pem: str) -> None:
    with pytest.raises(ValueError, match=r"(?i)certificate"):
        expiry_seconds(pem)
