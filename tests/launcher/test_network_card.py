"""Which network card a pinned worker uses, on made-up hosts; test_fake_topology.py has a real network."""

from __future__ import annotations

import dataclasses
import ipaddress

import pytest

from launcher import network_card
from launcher.environment import Environment
from launcher.topology import Card, Node

NODES = [Node(0, [(0,), (1,)]), Node(1, [(2,), (3,)])]
ROOT = "10.0.0.9"
CARDS = [Card("eth0", 0, 100_000, rdma=True), Card("eth1", 1, 100_000, rdma=True), Card("slow", 1, 1000, rdma=True)]
ADDRESSES = {"eth0": "10.0.0.1/24", "eth1": "10.0.0.2/24", "slow": "10.0.0.3/24"}


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The interfaces of the host and their addresses; may be changed."""
    found = dict(ADDRESSES)
    monkeypatch.setattr(network_card, "own_networks", lambda name: [found[name]] if name in found else [])
    return found


def near(networks: dict[str, str], cpus: set[int] | None = None, **more: object) -> str | None:
    def route(_address: str, source: str | None) -> str | None:
        """As where each address has a rule of its own."""
        by_address = {str(ipaddress.ip_interface(network).ip): name for name, network in networks.items()}
        return "eth0" if source is None else by_address[source]

    cpus = {2, 3} if cpus is None else cpus
    given = {"environment": Environment({}), "root": ROOT, "nodes": NODES, "cards": CARDS, "route": route, **more}
    return network_card.near_interface(cpus=cpus, **given)


def test_the_card_of_the_same_node(networks: dict[str, str]) -> None:
    assert near(networks) == "eth1"
    assert near(networks, {0, 1}) is None, "the usual one is near"


def test_the_user_has_chosen(networks: dict[str, str]) -> None:
    for name in ("DMLC_INTERFACE", "HOROVOD_GLOO_IFACE", "DMLC_NODE_HOST", "BYTEPS_RDMA_DEVICE"):
        assert near(networks, environment=Environment({name: "x"})) is None
    assert near(networks, environment=Environment({"DMLC_INTERFACE": ""})) == "eth1"


def test_nothing_to_choose(networks: dict[str, str]) -> None:
    assert near(networks, root=None) is None, "no network is used"
    assert near(networks, nodes=NODES[:1]) is None
    assert near(networks, cards=CARDS[:1]) is None
    assert near(networks, root="no-such-host.invalid") is None
    given = (Environment({}), ROOT, NODES, None, CARDS, lambda _address, _source: "eth0")
    assert network_card.near_interface(*given) is None, "not pinned"


def test_a_slower_card_or_one_without_verbs_is_none(networks: dict[str, str]) -> None:
    assert near(networks, cards=[CARDS[0], CARDS[2]]) is None
    assert near(networks, cards=[CARDS[0], dataclasses.replace(CARDS[1], rdma=False)]) is None
    assert near(networks, cards=[dataclasses.replace(CARDS[0], rdma=False), CARDS[1]]) == "eth1"


def test_another_network_is_none(networks: dict[str, str]) -> None:
    networks["eth1"] = "10.1.0.2/24"
    assert near(networks) is None
    del networks["eth1"]
    assert near(networks) is None, "it has no address"


def test_where_the_system_sends_by_the_usual_card_all_the_same(networks: dict[str, str]) -> None:
    assert near(networks, route=lambda _address, _source: "eth0") is None
    assert near(networks, route=lambda _address, _source: None) is None, "no route"


def test_the_usual_card_is_of_no_node(networks: dict[str, str]) -> None:
    assert near(networks, cards=[dataclasses.replace(CARDS[0], node=None), CARDS[1]]) is None
    assert near(networks, cards=CARDS[1:]) is None, "the route goes through a bridge"
