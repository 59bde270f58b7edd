"""The network of a cluster: a namespace with an address of its own for each pod, on one bridge.

The bridge is in a namespace too, so that rules and routes of this machine do not matter; this
machine is the node, whose kubelet asks the pods, at the first address.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

SUBNETS = IPv4Network("198.18.0.0/15")
"""For tests of network devices (RFC 2544): nobody routes to it."""
PROGRAMS = {
    "ip": "iproute2",
    "iptables": "iptables",
    "bwrap": "bubblewrap",
    "dnsmasq": "dnsmasq-base",
}
"""What is needed, and Debian's packages of it."""
NEEDED = (
    "this test lays out a cluster in namespaces: it needs root, a kernel that has network and user "
    f"namespaces, veth and bridges, and the packages {', '.join(PROGRAMS.values())}"
)


class Network:
    """Namespaces on a bridge; made by `network`.

    Args:
        prefix: What the names of all namespaces begin with.
        subnet: Addresses, the first one being the node's.
    """

    def __init__(self, prefix: str, subnet: IPv4Network) -> None:
        self._prefix = prefix
        self._free = subnet.hosts()
        self._length = subnet.prefixlen
        self._bridge = f"{prefix}-bridge"
        self._made: list[str] = []
        self.node = next(self._free)
        """The address of this machine on the bridge."""

    def open(self) -> None:
        """Make the bridge, and put this machine on it; what a killed process left is removed."""
        for left in re.findall(r"^pods(\d+)(\S+)", _ip("netns", "list"), re.MULTILINE):
            if not Path("/proc", left[0]).exists():
                _ip("netns", "delete", f"pods{left[0]}{left[1]}")
        _ip("netns", "add", self._bridge)
        _ip("-n", self._bridge, "link", "add", "pods", "type", "bridge")
        _ip("-n", self._bridge, "link", "set", "pods", "up")
        self._plug(self._prefix, None, self.node)

    def close(self) -> None:
        """Remove all namespaces, and with the bridge the ends of all wires."""
        for name in (*self._made, self._bridge):
            with suppress(AssertionError):
                _ip("netns", "delete", name)

    def join(self, name: str) -> tuple[str, IPv4Address]:
        """A new namespace on the bridge: its name for `inside`, and its address."""
        address = next(self._free)
        number = int(address) - int(self.node)
        namespace = f"{self._prefix}-{number}-{name}"
        _ip("netns", "add", namespace)
        self._made.append(namespace)
        _ip("-n", namespace, "link", "set", "lo", "up")
        self._plug(f"pod{number}", namespace, address)
        return namespace, address

    def leave(self, namespace: str) -> None:
        """Remove a namespace; its address is never given to another one."""
        _ip("netns", "delete", namespace)
        self._made.remove(namespace)

    @contextmanager
    def parted(self, namespace: str, others: Sequence[IPv4Address]) -> Iterator[None]:
        """Lose every packet between a namespace and these addresses while the block runs."""
        rules = [
            rule
            for other in others
            for rule in (["INPUT", "-s", str(other)], ["OUTPUT", "-d", str(other)])
        ]
        for rule in rules:
            _done([*inside(namespace), "iptables", "-A", *rule, "-j", "DROP"])
        try:
            yield
        finally:
            for rule in rules:
                _done([*inside(namespace), "iptables", "-D", *rule, "-j", "DROP"])

    def _plug(self, wire: str, namespace: str | None, address: IPv4Address) -> None:
        """A wire from the bridge to a namespace, or to this machine."""
        end = "eth0" if namespace else wire
        other = ["netns", namespace] if namespace else ["netns", str(os.getpid())]
        pair = ["link", "add", f"{wire}-b"[:15], "type", "veth", "peer", "name", end, *other]
        _ip("-n", self._bridge, *pair)
        _ip("-n", self._bridge, "link", "set", f"{wire}-b"[:15], "master", "pods", "up")
        where = ["-n", namespace] if namespace else []
        _ip(*where, "address", "add", f"{address}/{self._length}", "dev", end)
        _ip(*where, "link", "set", end, "up")


@contextmanager
def network() -> Iterator[Network]:
    """A network with room for 250 pods, in all of a machine's processes another one.

    Raises:
        AssertionError: Namespaces cannot be made here; says what is needed.
    """
    subnets = list(SUBNETS.subnets(new_prefix=24))
    made = Network(f"pods{os.getpid()}", subnets[os.getpid() % len(subnets)])
    try:
        missing = [program for program in PROGRAMS if shutil.which(program) is None]
        assert not missing, f"there is no {', '.join(missing)}"
        _done(["bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "true"])
        made.open()
    except (AssertionError, OSError) as error:
        made.close()
        raise AssertionError(f"{NEEDED}: {error}") from None
    try:
        yield made
    finally:
        made.close()


def inside(namespace: str) -> list[str]:
    """What a command line begins with that is run in a namespace."""
    return ["ip", "netns", "exec", namespace]


def _ip(*arguments: str) -> str:
    return _done(["ip", *arguments])


def _done(command: Sequence[str]) -> str:
    done = subprocess.run(list(command), capture_output=True, text=True, check=False)
    said = (done.stderr or done.stdout).strip()
    assert done.returncode == 0, f"`{' '.join(command)}` ended with {done.returncode}: {said}"
    return done.stdout
