"""Which interface carries the tensors: hosts with two of them, and IPv4 and IPv6 on the second."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lab import Host, Lab, LabError

SECONDS = 120.0
ROOT = Path(__file__).resolve().parents[2]
TRAINER = ROOT / "tests" / "launcher" / "trainer.py"
ROUNDS, ELEMENTS = 5, 1_000_000
PORT = 9000


def _second_interface(host: Host, number: int) -> None:
    host.run(["ip", "link", "add", "link", "eth0", "name", "data", "type", "macvlan", "mode", "bridge"])
    host.run(["ip", "address", "add", f"10.99.0.{number}/24", "dev", "data"])
    host.run(["ip", "link", "set", "data", "up"])


def _ipv6_address(host: Host, number: int) -> None:
    switch = "/proc/sys/net/ipv6/conf/data/disable_ipv6"
    try:
        host.run(["sh", "-c", f"echo 0 > {switch}"])
    except LabError as error:
        pytest.skip(f"no IPv6 here: {error}")
    host.run(["ip", "address", "add", f"fd99::{number}/64", "dev", "data", "nodad"])


def _sent(host: Host) -> int:
    """Bytes that have left by the second interface."""
    (link,) = json.loads(host.run(["ip", "-s", "-j", "link", "show", "data"]))
    return int(link["stats64"]["tx"]["bytes"])


@pytest.mark.parametrize(
    ("variable", "values", "by_data"),
    [
        ("DMLC_INTERFACE", ("data", "data"), True),
        ("DMLC_NODE_HOST", ("10.99.0.1", "10.99.0.2"), True),
        ("DMLC_NODE_HOST", ("fd99::1", "fd99::2"), True),
        ("DMLC_INTERFACE", ("eth0", "eth0"), False),
    ],
)
def test_the_named_interface_carries_the_tensors(
    lab: Lab, package: Path, variable: str, values: tuple[str, str], by_data: bool
) -> None:
    hosts = [lab.add_host("one"), lab.add_host("other")]
    for number, host in enumerate(hosts, 1):
        _second_interface(host, number)
        if ":" in values[0]:
            _ipv6_address(host, number)
    common = {
        "PATH": "/usr/bin:/bin",
        "DMLC_PS_ROOT_URI": hosts[0].address,
        "DMLC_PS_ROOT_PORT": str(PORT),
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "BYTEPS_JOB_TOKEN": "interfaces",
        "BYTEPS_TRANSPORT": "tcp",
        "BYTEPS_JOB_LINGER": "1",
        "BYTEPS_START_TIMEOUT": "100",
        "BYTEPS_LIBRARY": str(package / "lib" / "libbyteps.so"),
    }
    server = [str(package / "bin" / "byteps_server")]
    trainer = [sys.executable, str(TRAINER), str(ROUNDS), str(ELEMENTS)]
    members = [
        (0, "scheduler", server, {}),
        (0, "server", server, {"DMLC_RANK": "0"}),
        (0, "worker", trainer, {"DMLC_WORKER_ID": "0"}),
        (1, "worker", trainer, {"DMLC_WORKER_ID": "1"}),
    ]
    processes = [
        hosts[at].popen(
            command,
            env=common | {"DMLC_ROLE": role, variable: values[at], **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for at, role, command, own in members
    ]
    said = [process.communicate(timeout=SECONDS)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(members), "\n----\n".join(said)
    # The worker of the other host pushes all of it, and the server writes the results back.
    pushed = ROUNDS * ELEMENTS * 4
    for host in hosts:
        sent = _sent(host)
        assert sent > pushed if by_data else sent < pushed / 10, f"{sent} bytes left {host.name} by data"
