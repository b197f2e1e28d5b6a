"""How soon a host that has gone silent is given up, where no agent of ours watches it.

A network that is cut closes no connection, and mpirun, srun, torchrun and Ray wait for a lost host for minutes or for
ever. So the processes that they start take the silence of a peer for its death sooner than the library does by itself:
the job ends within 15 seconds, the time that the launcher needs included (torchrun: five seconds).
BYTEPS_PEER_TIMEOUT says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..environment import Environment

_SECONDS = "8"


def silence(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables to set in a job of several hosts: none where the user has set them, or debugs, which stops
    processes."""
    environment = Environment(variables)
    given = any(environment.text(name) is not None for name in ("BYTEPS_PEER_TIMEOUT", "PS_HEARTBEAT_TIMEOUT"))
    return {} if given or environment.flag("BYTEPS_ENABLE_GDB") else {"BYTEPS_PEER_TIMEOUT": _SECONDS}
