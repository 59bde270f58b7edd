"""Every client test runs over TCP and over a unix socket."""

from pathlib import Path

import pytest
from tests.integration.clients.servers import own_address


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a test's server listens."""
    return own_address(request.param, tmp_path)
