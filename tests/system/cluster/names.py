"""The cluster's DNS: dnsmasq, which answers from a table that changes with the pods."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path

from tests.support.processes import wait_until
from tests.system.cluster.network import Network, inside

DOMAIN = "antiphon.svc.cluster.local"
"""Of the namespace `antiphon`."""


class Names:
    """Answers for names within the cluster, and for no others.

    Args:
        network: What it joins.
        folder: Holds its table, its log, and `resolv.conf` of the pods.
    """

    def __init__(self, network: Network, folder: Path) -> None:
        self._table = folder / "names"
        self._table.write_text("")
        self._lock = threading.Lock()
        namespace, self.address = network.join("dns")
        self.resolv_conf = folder / "resolv.conf"
        self.resolv_conf.write_text(
            f"search {DOMAIN} svc.cluster.local cluster.local\n"
            f"nameserver {self.address}\n"
            "options ndots:5\n"
        )
        told = folder / "dns.log"
        with told.open("w") as log:
            self._process = subprocess.Popen(
                [
                    *inside(namespace),
                    "dnsmasq",
                    "--keep-in-foreground",
                    "--conf-file=/dev/null",
                    "--user=root",
                    "--pid-file=",
                    "--no-resolv",
                    "--no-hosts",
                    "--local=/#/",
                    f"--addn-hosts={self._table}",
                    "--log-queries",
                    "--log-facility=-",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        # Until it says so, the signal that it reads its table at would end it.
        wait_until(lambda: "started" in told.read_text(), timeout=30, what="dnsmasq has started")

    def tell(self, names: Mapping[str, Sequence[IPv4Address]]) -> None:
        """From now on answer with these; a name without addresses does not exist."""
        lines = [f"{a} {name}.{DOMAIN}" for name, found in names.items() for a in found]
        with self._lock:
            assert self._process.poll() is None, f"dnsmasq ended with {self._process.returncode}"
            self._table.write_text("".join(f"{line}\n" for line in lines))
            self._process.send_signal(signal.SIGHUP)

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(10)
