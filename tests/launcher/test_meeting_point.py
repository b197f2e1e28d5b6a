"""By which address the other hosts reach the coordinator's: as the agents' reports tell."""

from __future__ import annotations

import types
from typing import Any

import pytest

from launcher.remote.meeting_point import meeting_point


def host(name: str, **hello: Any) -> Any:
    return types.SimpleNamespace(machine=name, hello={"address": None, "launcher_address": None, **hello})


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
