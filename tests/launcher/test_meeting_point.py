"""By which address the other hosts reach the coordinator's: as the agents' reports tell."""

from __future__ import annotations

import socket
import types
from typing import Any

import pytest

from launcher.failure import LaunchError
from launcher.host_identity import this_host
from launcher.remote.meeting_point import meeting_point


def host(name: str, **hello: Any) -> Any:
    return types.SimpleNamespace(machine=name, hello={"address": None, "launcher_address": None, **hello})


@pytest.mark.parametrize("loopback", ["127.0.1.1", "::1"])
def test_this_host_by_another_name(loopback: str) -> None:
    """Its ssh daemon was reached at the address that /etc/hosts gives to its own name."""
    here = host("vm", networks=["10.0.0.1/24"], address=loopback, launcher_address=loopback)
    other = host("b", networks=["10.0.0.2/24"], address="10.0.0.2", launcher_address="10.0.0.1")
    assert meeting_point(here, [here, other], None) == "10.0.0.1"
    far = host("b", networks=["10.0.0.2/24"], address="10.0.0.2", launcher_address="10.9.9.9")
    assert meeting_point(here, [here, far], None) == "10.0.0.1"
    assert meeting_point(here, [here], None) == loopback


@pytest.mark.parametrize(
    "launcher_address, expected",
    [
        ("10.0.0.1", "10.0.0.1"),
        ("192.168.1.9", "10.0.0.1"),  # a jump host's, or that of a router that rewrites addresses
        ("fd00::1", "fd00::1"),  # networks are those of IPv4
    ],
)
def test_what_the_others_see_of_this_host(launcher_address: str, expected: str) -> None:
    here = host("localhost", networks=["172.17.0.1/16", "10.0.0.1/24"])
    other = host("b", networks=["172.17.0.1/16", "10.0.0.2/24"], address="10.0.0.2", launcher_address=launcher_address)
    assert meeting_point(here, [here, other], None) == expected
    assert meeting_point(other, [here, other], None) == "10.0.0.2"


def test_a_host_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an allocation of Slurm no ssh tells one. The name of the host where bpslaunch runs stands for no other."""
    monkeypatch.setattr(socket, "gethostbyname", lambda _name: "10.9.9.9")
    far = host("node7", networks=[], identity="node7 1234 net:[1]")
    other = host("node8", networks=["10.0.0.2/24"], identity="node8 1234 net:[1]")
    with pytest.raises(LaunchError, match=r"host node7: no IPv4 address.*DMLC_INTERFACE"):
        meeting_point(far, [far, other], None)
    here = host("login", networks=[], identity=this_host())
    assert meeting_point(here, [here, other], None) == "10.9.9.9"
