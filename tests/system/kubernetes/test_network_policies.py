"""Who may call whom: the policies of the overlay `several-nodes`, evaluated as Kubernetes does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from tests.system.kubernetes.rendered import Manifest, of_kind, overlay, pods

pytestmark = pytest.mark.system

GRPC, HEALTH, METRICS = 50051, 50052, 9464
RENDEZVOUS = 29500
PORTS = {"grpc": GRPC, "health": HEALTH, "metrics": METRICS}


@dataclass(frozen=True)
class Place:
    """A pod of some namespace, or, without labels, an address outside the cluster."""

    labels: Mapping[str, str] | None
    namespace: str = "antiphon"
    policies: tuple[Manifest, ...] = field(default=(), repr=False)


GIVEN = {
    "stranger": Place({}),
    "watcher": Place({"antiphon/watches": "learner"}),
    "elsewhere": Place({}, "default"),
    "prometheus": Place({"app.kubernetes.io/name": "prometheus"}, "monitoring"),
    "dns": Place({"k8s-app": "kube-dns"}, "kube-system"),
    "internet": Place(None, ""),
}
SERVICES = ("agent", "reward", "transition")
OURS = ("learner", *SERVICES)
RANKS = ("learner", "member")

OPEN = [
    *(("learner", name, GRPC) for name in SERVICES),
    ("watcher", "learner", GRPC),
    *(("prometheus", name, METRICS) for name in OURS),
    *((name, "dns", 53) for name in (*OURS, "model-cache")),
    ("model-cache", "internet", 443),
    ("member", "dns", 53),
    *((one, other, RENDEZVOUS) for one in RANKS for other in RANKS),
]
CLOSED = [
    *((name, "member", RENDEZVOUS) for name in (*SERVICES, "watcher", "elsewhere", "stranger")),
    *(("member", name, GRPC) for name in SERVICES),
    ("member", "internet", 443),
    *(("elsewhere", name, GRPC) for name in OURS),
    *(("stranger", name, GRPC) for name in OURS),
    *((name, "agent", GRPC) for name in (*SERVICES, "watcher")),
    *((name, "learner", GRPC) for name in SERVICES),
    *((name, "internet", 443) for name in (*OURS, "stranger")),
    ("model-cache", "internet", 80),
    ("prometheus", "reward", GRPC),
    ("elsewhere", "reward", METRICS),
    ("learner", "reward", METRICS),
    ("learner", "elsewhere", GRPC),
]


def _place(name: str) -> Place:
    """Somebody of outside, or the pod of a component, under the overlay's policies."""
    objects = overlay("several-nodes")
    policies = tuple(of_kind(objects, "NetworkPolicy"))
    if name in GIVEN:
        ours = GIVEN[name].namespace == "antiphon"
        return replace(GIVEN[name], policies=policies if ours else ())
    return Place(next(p.labels for p in pods(objects) if p.component == name), policies=policies)


@pytest.mark.parametrize(("caller", "called", "port"), OPEN)
def test_what_a_run_needs_is_open(caller: str, called: str, port: int) -> None:
    assert _allowed(_place(caller), _place(called), port)


@pytest.mark.parametrize(("caller", "called", "port"), CLOSED)
def test_everything_else_is_closed(caller: str, called: str, port: int) -> None:
    assert not _allowed(_place(caller), _place(called), port)


def test_without_policies_all_is_open() -> None:
    """What holds these tests: the evaluation itself lets everything through without policies."""
    for caller, called, port in CLOSED:
        bare = [replace(_place(name), policies=()) for name in (caller, called)]
        assert _allowed(*bare, port)


def _allowed(caller: Place, called: Place, port: int) -> bool:
    return _lets(caller, "Egress", called, port) and _lets(called, "Ingress", caller, port)


def _lets(pod: Place, direction: str, peer: Place, port: int) -> bool:
    """Whether the policies that select `pod` let a peer through; none that does lets all."""
    chosen = [
        policy["spec"]
        for policy in pod.policies
        if direction in policy["spec"]["policyTypes"]
        and pod.labels is not None
        and _selects(policy["spec"]["podSelector"], pod.labels)
    ]
    if not chosen:
        return True
    side = "to" if direction == "Egress" else "from"
    rules = [rule for spec in chosen for rule in spec.get(direction.lower(), ())]
    return any(
        any(_is(entry, peer, pod.namespace) for entry in rule[side])
        and any(_has(entry, port) for entry in rule["ports"])
        for rule in rules
    )


def _has(entry: Manifest, port: int) -> bool:
    first = PORTS.get(entry["port"], entry["port"])
    return bool(first <= port <= entry.get("endPort", first))


def _is(entry: Manifest, peer: Place, namespace: str) -> bool:
    if peer.labels is None:
        return "ipBlock" in entry
    if "ipBlock" in entry:
        return False
    if "namespaceSelector" in entry:
        labels = {"kubernetes.io/metadata.name": peer.namespace}
        if not _selects(entry["namespaceSelector"], labels):
            return False
    elif peer.namespace != namespace:
        return False
    return _selects(entry.get("podSelector", {}), peer.labels)


def _selects(selector: Manifest, labels: Mapping[str, str]) -> bool:
    wanted = selector.get("matchLabels", {}).items() <= dict(labels).items()
    return wanted and all(
        expression["operator"] == "In" and labels.get(expression["key"]) in expression["values"]
        for expression in selector.get("matchExpressions", ())
    )
