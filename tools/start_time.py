"""How long a job over several hosts takes from its command to its first sum.

    .venv/bin/python tools/start_time.py [--hosts 4] [--workers 4] [--runs 5] [--import torch]

Starts `bpslaunch --hosts` with a server on each host, over real ssh daemons in namespaces of this machine (root, and
what tests/launcher/ssh_hosts.py needs), with the package byteps of this interpreter. Prints for each run the seconds
until the last worker has its first sum, how long the slowest import of a trainer has taken of it, and the difference.
All hosts share the cores of this machine, so this is an upper bound of what real hosts take.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

_ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(_ROOT / "tests" / "launcher"))

from ssh_hosts import SshHosts  # noqa: E402

_TRAINER = """
import time
began = time.time()
import sys
sys.path.insert(0, {support!r})
import byteps
{more}
from native_push import push_pull_doubles
imported = time.time()
byteps.init()
joined = time.time()
request, memory = push_pull_doubles("x", [1.0])
request.wait()
print("times", began, imported, joined, time.time(), flush=True)
assert memory[0] == byteps.size()
byteps.shutdown()
"""


@dataclasses.dataclass(frozen=True)
class Start:
    """One start of a job, in seconds: of all workers the last."""

    first_sum: float  # since the command
    begin: float  # likewise
    slowest_import: float

    @property
    def beyond_import(self) -> float:
        """What starting takes beside the trainer's own import."""
        return self.first_sum - self.slowest_import


def write_trainer(folder: pathlib.Path, module: str | None = None) -> pathlib.Path:
    """The script of a worker, which imports `module` beside byteps."""
    support = str(_ROOT / "tests" / "frameworks" / "support")
    trainer = folder / "trainer.py"
    trainer.write_text(_TRAINER.format(support=support, more=f"import {module}" if module else ""))
    return trainer


def one_run(hosts: SshHosts, count: int, workers: int, trainer: pathlib.Path) -> Start:
    """Starts the job once; RuntimeError if it fails."""
    names = ",".join(f"lh{number}:{workers}" for number in range(1, count + 1))
    # The package's, with its server: what a checkout has built may be another build, as for a sanitizer.
    launcher = [sys.executable, "-m", "byteps.launcher", "--ssh-args", hosts.ssh_args, "--hosts", names]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "BYTEPS_"))}
    started = time.time()
    done = subprocess.run(
        [*hosts.here, *launcher, "--", sys.executable, str(trainer)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=variables,
    )
    found = [[float(each) - started for each in line.split()] for line in re.findall(r"times (.*)$", done.stdout, re.M)]
    if done.returncode != 0 or len(found) != count * workers:
        raise RuntimeError(f"exit code {done.returncode}, {len(found)} workers: {done.stderr}")
    return Start(
        first_sum=max(times[3] for times in found),
        begin=max(times[0] for times in found),
        slowest_import=max(times[1] - times[0] for times in found),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4, metavar="N")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="on each host")
    parser.add_argument("--runs", type=int, default=5, metavar="N")
    parser.add_argument("--import", dest="module", metavar="MODULE", help="what the trainer imports beside byteps")
    values = parser.parse_args()
    print(
        f"{values.hosts} hosts x {values.workers} workers + {values.hosts} servers, {os.cpu_count()} cores, load ",
        end="",
    )
    print(f"{os.getloadavg()[0]:.1f}")
    print("first sum of all   workers begin   slowest import   first sum less import")
    with tempfile.TemporaryDirectory() as folder, SshHosts(pathlib.Path(folder), values.hosts) as hosts:
        trainer = write_trainer(pathlib.Path(folder), values.module)
        for _ in range(values.runs):
            found = one_run(hosts, values.hosts, values.workers, trainer)
            times = (found.first_sum, found.begin, found.slowest_import, found.beyond_import)
            print("{:14.2f} s {:13.2f} s {:14.2f} s {:21.2f} s".format(*times), flush=True)


if __name__ == "__main__":
    main()
