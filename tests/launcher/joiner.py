"""A trainer that has its rank from its launcher alone: byteps.init() finds out.

    joiner.py ROUNDS [--stuck RANK] [--hard-exit FILE] [--fail-once FILE]

Prints "rank R of S, local L of N, servers M, launcher L", then "round I" after each sum, then "done". ROUNDS 0: for
ever. With --stuck this rank never comes to its second round, and ignores SIGTERM. With --hard-exit rank 1 ends without
what Python does at its end, and another rank waits for it to be gone and prints "outlived". With --fail-once rank 1
fails after its first round, unless FILE is there, which it makes.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "frameworks" / "support"))

import byteps
from native_push import push_pull_doubles

_RANKS = ("RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")


def say(line: str) -> None:
    """Writes a line as one piece: mpirun joins what its ranks write, and print() may write the line's end by itself."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    rounds = int(sys.argv[1])
    byteps.init()
    info = byteps.info()
    theirs = next((os.environ[name] for name in _RANKS if name in os.environ), "none")
    place = f"local {info.local_rank} of {info.local_size}, servers {info.num_servers}, launcher {theirs}"
    say(f"rank {info.rank} of {info.size}, {place}")
    step = 0
    while rounds == 0 or step < rounds:
        request, memory = push_pull_doubles("x", [1.0, float(info.rank)])
        request.wait()
        expected = [info.size, sum(range(info.size))]
        if list(memory) != expected:
            sys.exit(f"wrong sum: {list(memory)} in place of {expected}")
        say(f"round {step}")
        step += 1
        if "--stuck" in sys.argv and info.rank == int(sys.argv[sys.argv.index("--stuck") + 1]):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            say("stuck")
            time.sleep(1000)
        if "--fail-once" in sys.argv and info.rank == 1:
            mark = pathlib.Path(sys.argv[-1])
            if not mark.exists():
                mark.touch()
                os._exit(7)
    byteps.shutdown()
    say("done")
    if "--hard-exit" in sys.argv:
        end_hard(info.rank, pathlib.Path(sys.argv[-1]))


def end_hard(rank: int, mark: pathlib.Path) -> None:
    """Rank 1 ends at once; a while later the others are still there."""
    if rank == 1:
        mark.write_text(str(os.getpid()))
        os._exit(0)
    deadline = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(2)  # in which a launcher that took it for a crash ends this one
    say("outlived")


if __name__ == "__main__":
    main()
