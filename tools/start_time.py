"""How long a job over several hosts takes from its command to its first sum.

    .venv/bin/python tools/start_time.py [--hosts 4] [--workers 4] [--runs 5] [--import torch]

Starts `bpslaunch --hosts` with a server on each host, over real ssh daemons in namespaces of this machine (root, and
what tests/launcher/ssh_hosts.py needs), with the package byteps of this interpreter. Prints for each run the seconds
until the last worker has its first sum, how long the slowest import of a trainer has taken of it, and the difference.
All hosts share the cores of this machine, so this is an upper bound of what real hosts take.
"""

from __future__ import annotations

import argparse
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


def one_run(hosts: SshHosts, count: int, workers: int, trainer: pathlib.Path) -> list[list[float]]:
    """The times of each worker, in seconds since the command: began, imported, joined, first sum."""
    names = ",".join(f"lh{number}:{workers}" for number in range(1, count + 1))
    launcher = [sys.executable, str(_ROOT / "launcher" / "launch.py"), "--ssh-args", hosts.ssh_args, "--hosts", names]
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
        sys.exit(f"start_time: exit code {done.returncode}, {len(found)} workers: {done.stderr}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4, metavar="N")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="on each host")
    parser.add_argument("--runs", type=int, default=5, metavar="N")
    parser.add_argument("--import", dest="module", metavar="MODULE", help="what the trainer imports beside byteps")
    values = parser.parse_args()
    more = f"import {values.module}" if values.module else ""
    support = str(_ROOT / "tests" / "frameworks" / "support")
    print(
        f"{values.hosts} hosts x {values.workers} workers + {values.hosts} servers, {os.cpu_count()} cores, load ",
        end="",
    )
    print(f"{os.getloadavg()[0]:.1f}")
    print("first sum of all   workers begin   slowest import   first sum less import")
    with tempfile.TemporaryDirectory() as folder, SshHosts(pathlib.Path(folder), values.hosts) as hosts:
        trainer = pathlib.Path(folder) / "trainer.py"
        trainer.write_text(_TRAINER.format(support=support, more=more))
        for _ in range(values.runs):
            found = one_run(hosts, values.hosts, values.workers, trainer)
            last = max(times[3] for times in found)
            slowest = max(times[1] - times[0] for times in found)
            begin = max(times[0] for times in found)
            print(f"{last:14.2f} s {begin:13.2f} s {slowest:14.2f} s {last - slowest:21.2f} s", flush=True)


if __name__ == "__main__":
    main()
