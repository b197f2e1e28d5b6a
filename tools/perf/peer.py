"""What push_pull is measured against, in the same run.

    peer = make_peer("gloo", bps, "tcp")    # or "raw"
    peer.prepare(workload)
    peer.run()                              # as much as one round of push_pull
    peer.close()

gloo  torch.distributed's all-reduce, or the same collective, between the same processes
raw   the medium itself. Through servers over tcp: every worker sends the bytes over a plain socket to a process beside
      the next worker, and gets them back from it (stream.py). Over verbs and efa: there and back, by fi_pingpong
      (pingpong.py). In the memory of one host: every worker adds its share by c = a + b and copies it (fold.py)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from .collective import CollectiveWorkload

if TYPE_CHECKING:
    import torch

    from .workload import Workload


class Peer(Protocol):
    """One of them."""

    name: str
    reduces: bool  # run() leaves the results in the workload's tensors

    def prepare(self, workload: Workload) -> None:
        """What comes are rounds of these tensors."""

    def run(self) -> float | None:
        """One round; its seconds where the peer measures them itself."""

    def stream(self, rounds: int) -> float | None:
        """Rounds without a break; likewise."""

    def close(self) -> None:
        """Nothing comes any more."""


def make_peer(name: str, bps: Any, medium: str) -> Peer:
    """The same on all ranks, which meet in it; `medium`: see medium.py. SystemExit says what is missing."""
    if name == "gloo":
        from .gloo import Gloo

        return Gloo(bps)
    if medium in ("alone", "local", "shm"):
        from .fold import Fold

        return Fold(bps)
    if medium in ("verbs", "efa"):
        from .pingpong import PingPong

        return PingPong(bps, medium)
    from .stream import Stream

    return Stream(bps)


def results_of(peer: Peer, workload: Workload | CollectiveWorkload) -> list[torch.Tensor]:
    """What is to be checked after a round."""
    if isinstance(workload, CollectiveWorkload):
        return workload.results()
    return workload.tensors if peer.reduces else []
