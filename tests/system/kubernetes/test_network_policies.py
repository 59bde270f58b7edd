"""Who may call whom: the policies of the overlay `several-nodes`, evaluated as Kubernetes does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from tests.system.kubernetes.rendered import Manifest, of_kind, overlay, pods

pytestmark = pytest.mark.system

GRPC, HEALTH, METRICS = 50051, 50052, 9464
PORTS = {"grpc": GRPC, "health": HEALTH, "metrics": METRICS}


@dataclass(frozen=True)
class Place:
    """A pod of some namespace, or, without labels, an address outside the cluster."""

    labels: Mapping[str, str] | None
    namespace: str = "antiphon"
    policies: tuple[Manifest, ...] = field(default=(), repr=False)


def _pod(component: str) -> Place:
    objects = overlay("several-nodes")
    labels = next(p.labels for p in pods(objects) if p.component == component)
    return Place(labels, policies=tuple(of_kind(objects, "NetworkPolicy")))


LEARNER, AGENT, REWARD, TRANSITION, FETCH = (
    _pod(name) for name in ("learner", "agent", "reward", "transition", "model-cache")
)
STRANGER = Place({}, policies=LEARNER.policies)
WATCHER = Place({"antiphon/watches": "learner"}, policies=LEARNER.policies)
ELSEWHERE = Place({}, "default")
PROMETHEUS = Place({"app.kubernetes.io/name": "prometheus"}, "monitoring")
DNS = Place({"k8s-app": "kube-dns"}, "kube-system")
INTERNET = Place(None, "")

OPEN = [
    *((LEARNER, other, GRPC) for other in (AGENT, REWARD, TRANSITION)),
    (WATCHER, LEARNER, GRPC),
    *((PROMETHEUS, other, METRICS) for other in (LEARNER, AGENT, REWARD, TRANSITION)),
    *((pod, DNS, 53) for pod in (LEARNER, AGENT, REWARD, TRANSITION, FETCH)),
    (FETCH, INTERNET, 443),
]
CLOSED = [
    *((ELSEWHERE, pod, GRPC) for pod in (LEARNER, AGENT, REWARD, TRANSITION)),
    *((STRANGER, pod, GRPC) for pod in (LEARNER, AGENT, REWARD, TRANSITION)),
    *((pod, AGENT, GRPC) for pod in (AGENT, REWARD, TRANSITION, WATCHER)),
    *((pod, LEARNER, GRPC) for pod in (AGENT, REWARD, TRANSITION)),
    *((pod, INTERNET, 443) for pod in (LEARNER, AGENT, REWARD, TRANSITION, STRANGER)),
    (FETCH, INTERNET, 80),
    (PROMETHEUS, REWARD, GRPC),
    (ELSEWHERE, REWARD, METRICS),
    (LEARNER, REWARD, METRICS),
    (LEARNER, ELSEWHERE, GRPC),
]


@pytest.mark.parametrize(("caller", "called", "port"), OPEN)
def test_what_a_run_needs_is_open(caller: Place, called: Place, port: int) -> None:
    assert _allowed(caller, called, port)


@pytest.mark.parametrize(("caller", "called", "port"), CLOSED)
def test_everything_else_is_closed(caller: Place, called: Place, port: int) -> None:
    assert not _allowed(caller, called, port)


def test_without_policies_all_is_open() -> None:
    """What holds these tests: the evaluation itself lets everything through without policies."""
    assert all(
        _allowed(replace(caller, policies=()), replace(called, policies=()), port)
        for caller, called, port in CLOSED
    )


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
        and any(PORTS.get(entry["port"], entry["port"]) == port for entry in rule["ports"])
        for rule in rules
    )


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
