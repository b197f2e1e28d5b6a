"""How soon a silent host is given up where mpirun, srun, torchrun or Ray has started the processes."""

from __future__ import annotations

import pytest

from launcher.environments.silence import silence


def test_sooner_than_the_library_does() -> None:
    assert silence({}) == {"BYTEPS_PEER_TIMEOUT": "8"}


@pytest.mark.parametrize("name, value", [("BYTEPS_PEER_TIMEOUT", "60"), ("PS_HEARTBEAT_TIMEOUT", "60")])
def test_the_user_knows_better(name: str, value: str) -> None:
    assert silence({name: value}) == {}


def test_a_debugger_stops_processes() -> None:
    assert silence({"BYTEPS_ENABLE_GDB": "1"}) == {}
