"""The switch, the hosts, their cables, and what can go wrong with these.

    with Lab() as lab:
        host = lab.add_host("server0", rate=200_000_000)
        child = host.popen(["program"], env=variables)      # killed when the lab ends, at the latest
        host.address                                        # "10.77.0.1"
        lab.counters()["server0"]                           # what its cable has carried

A cable carries `rate` bits per second in each direction at once: one token bucket where the host sends, one where the
switch sends to it, each with a queue. Beyond the queue of the switch packets are lost, as in a real one. TCP's
congestion control is Linux's own default on all hosts, whatever this machine's is, unless another one is asked for. On
one loopback interface nothing is made up, and it is this machine's.

What can be done to a cable:

    link_down(), link_up()      unplugged: the host sees its carrier go
    silence(), unsilence()      packets vanish in both directions without a word: the other side is half open
    lose(percent)               some vanish, at random; 0: none
    lose_large(size)            those of more than `size` bytes vanish
    deafen(address)             those from one address vanish
    set_rate(rate)              slower, or faster
    set_mtu(mtu)                packets of another size, in both directions
    lose_address()              the interface stays, its address is gone: as when a lease is not renewed
    remove()                    the interface is gone: as when a driver is unloaded; nothing brings it back
    reset()                     a sender of a large TCP packet gets a reset for an answer

`Lab(loopback=True)` has no cables, and nothing that can be done to them: its hosts are like containers of one machine
that share its loopback interface, but no memory. All have the address 127.0.0.1.

Threads: one. Ownership: `close` (or the end of `with`) kills what `popen` has started and lets go of the namespaces.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .namespaces import Namespaces, die_with_parent
from .rates import bucket

_COMMAND_SECONDS = 20
# Where the host sends, backpressure keeps the sockets from overflowing the queue, so it may be long.
_HOST_QUEUE_SECONDS = 0.2
# Where the switch sends: of its buffers a port gets about a megabyte.
_SWITCH_QUEUE_SECONDS = 0.05
_KILL_SECONDS = 5.0
# What Linux has by default. Were it this machine's own, labs of two machines could not be compared.
DEFAULT_CONGESTION = "cubic"


_IPV4 = Path("/proc/sys/net/ipv4")


class LabError(Exception):
    """What the lab needs is not here, or a command of the system failed; the message has its words."""


@contextlib.contextmanager
def _allowed_in_namespaces(congestion: str) -> Iterator[None]:
    """A namespace may choose among the congestion controls that this machine allows every process (the machine itself
    among all it has): for as long as this takes, this one, too. What has chosen it keeps it."""
    path = _IPV4 / "tcp_allowed_congestion_control"
    try:
        with path.open("r+") as file:
            # Of several labs at once one would otherwise take back what another relies on.
            fcntl.flock(file, fcntl.LOCK_EX)
            allowed = file.read().strip()
            try:
                path.write_text(f"{allowed} {congestion}\n")
                yield
            finally:
                path.write_text(f"{allowed}\n")
    except OSError as error:
        raise LabError(
            f"this machine does not allow the TCP congestion control {congestion!r} in network namespaces, and {path} "
            f"cannot be changed from here ({error.strerror}): add it there, or ask for one that is allowed"
        ) from error


def why_not() -> str | None:
    """Why there can be no lab here, as a sentence; None if there can."""
    if os.geteuid() != 0:
        return "netlab needs root, to make network namespaces"
    for program in ("ip", "tc", "bridge"):
        if _find(program) is None:
            return f"netlab needs the program {program}: apt-get install iproute2"
    try:
        with Lab() as lab:
            lab.add_host("probe", rate=10**6)
    except (OSError, LabError) as error:
        return f"netlab cannot make a host here: {error}"
    return None


def why_not_lose() -> str | None:
    """Why `Host.lose`, `Host.lose_large`, `Host.deafen` and `Host.reset` cannot work here; None if they can."""
    if _find("nft") is None:
        return "netlab needs the program nft to drop packets and to reset connections: apt-get install nftables"
    return why_not()


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that a host's cable has carried since it was plugged in, with all headers."""

    sent: int
    received: int

    def __sub__(self, before: Traffic) -> Traffic:
        return Traffic(self.sent - before.sent, self.received - before.received)


class Host:
    """One host of a lab. Made by `Lab.add_host`."""

    def __init__(self, lab: Lab, name: str, address: str, namespaces: Namespaces) -> None:
        self.name = name
        self.address = address
        self._lab = lab
        self._namespaces = namespaces
        self._rated = False
        self._lossy = False

    def enter(self) -> None:
        """Moves the calling process, a child before its exec, onto this host."""
        self._namespaces.enter()

    def popen(self, command: Sequence[str], **arguments: Any) -> subprocess.Popen[Any]:
        """subprocess.Popen on this host, in a session of its own. It dies with this process, and with the lab."""
        return self._lab.popen(self._namespaces.enter, command, **arguments)

    def run(self, command: Sequence[str], **arguments: Any) -> str:
        """Runs a short command on this host; its output. LabError if it fails, or takes longer than `seconds`."""
        return _run(self._namespaces, command, **arguments)

    def link_down(self) -> None:
        """Unplugs the cable."""
        self._lab.at_switch(["ip", "link", "set", "dev", self.name, "down"])

    def link_up(self) -> None:
        """Plugs it in again."""
        self._lab.at_switch(["ip", "link", "set", "dev", self.name, "up"])

    def lose_address(self) -> None:
        """Takes the address away from this host's interface."""
        self.run(["ip", "address", "flush", "dev", "eth0"])

    def remove(self) -> None:
        """Takes this host's interface away, with its end at the switch."""
        self.run(["ip", "link", "delete", "dev", "eth0"])

    def silence(self) -> None:
        """From now on the switch throws away what comes from this host and what goes to it."""
        self._lab.at_switch(["bridge", "link", "set", "dev", self.name, "state", "0"])

    def unsilence(self) -> None:
        """The end of `silence`."""
        self._lab.at_switch(["bridge", "link", "set", "dev", self.name, "state", "3"])

    def lose(self, percent: int) -> None:
        """From now on the switch throws away this many of a hundred packets to this host and from it."""
        if not 0 <= percent <= 100:
            raise ValueError(f"{percent} percent cannot be lost")
        rules = [f"delete table bridge {self.name}"] if self._lossy else []
        self._lossy = percent > 0
        chance = f"numgen random mod 100 < {percent}" if percent < 100 else ""
        if percent > 0:
            rules += [
                f"add table bridge {self.name}",
                f"add chain bridge {self.name} lose {{ type filter hook forward priority 0; }}",
                *(
                    f"add rule bridge {self.name} lose {side} {self.name} {chance} drop"
                    for side in ("iifname", "oifname")
                ),
            ]
        self._lab.at_switch(["nft", "-f", "-"], input="\n".join(rules) + "\n")

    def set_rate(self, rate: int) -> None:
        """Bits per second in each direction."""
        verb = "change" if self._rated else "add"
        self._rated = True
        self.run(["tc", "qdisc", verb, "dev", "eth0", "root", *bucket(rate, _HOST_QUEUE_SECONDS).split()])
        self._lab.at_switch(
            ["tc", "qdisc", verb, "dev", self.name, "root", *bucket(rate, _SWITCH_QUEUE_SECONDS).split()]
        )

    def set_mtu(self, mtu: int) -> None:
        """The largest packet of the cable, at both of its ends. Connections that stand go on with packets of this size
        where both hosts have it."""
        self.run(["ip", "link", "set", "dev", "eth0", "mtu", str(mtu)])
        self._lab.at_switch(["ip", "link", "set", "dev", self.name, "mtu", str(mtu)])

    def deafen(self, address: str) -> None:
        """From now on this host's firewall throws away what comes from that address: of each connection between the two
        one side hears nothing. All others go on."""
        rules = [
            "add table ip deafen",
            "add chain ip deafen incoming { type filter hook input priority 0; }",
            f"add rule ip deafen incoming ip saddr {address} drop",
        ]
        self.run(["nft", "-f", "-"], input="\n".join(rules) + "\n")

    def lose_large(self, size: int) -> None:
        """From now on packets of more than so many bytes do not reach this host, and their sender is not told: what a
        router with a smaller MTU and a firewall that drops ICMP make of a path."""
        rules = [
            "add table ip lose_large",
            "add chain ip lose_large incoming { type filter hook input priority 0; }",
            f"add rule ip lose_large incoming meta length > {size} drop",
        ]
        self.run(["nft", "-f", "-"], input="\n".join(rules) + "\n")

    def reset(self) -> None:
        """From now on a TCP packet to this host that carries more than some hundred bytes is answered with a reset: the
        connection of its sender breaks in the middle of what it sends. Small ones pass."""
        rules = [
            "add table ip reset_large",
            "add chain ip reset_large incoming { type filter hook input priority 0; }",
            "add rule ip reset_large incoming meta l4proto tcp meta length > 1000 counter reject with tcp reset",
        ]
        self.run(["nft", "-f", "-"], input="\n".join(rules) + "\n")

    def resets(self) -> int:
        """How many packets have been answered so, since `reset`."""
        found = re.search(r"counter packets (\d+)", self.run(["nft", "list", "table", "ip", "reset_large"]))
        if found is None:
            raise LabError(f"host {self.name} resets nothing")
        return int(found[1])

    def close(self) -> None:
        """Lets go of its namespaces."""
        self._namespaces.close()


def _own_congestion() -> str:
    return (_IPV4 / "tcp_congestion_control").read_text().strip()


class Lab:
    """Some hosts around a switch."""

    def __init__(
        self,
        mtu: int = 1500,
        congestion: str | None = None,
        *,
        loopback: bool = False,
        sysctls: Mapping[str, str] | None = None,
    ) -> None:
        """`congestion`: TCP's congestion control; None: the default. `sysctls`: of the network namespaces of all
        hosts, such as {"net.ipv4.tcp_slow_start_after_idle": "0"}."""
        self.loopback = loopback
        self._sysctls = dict(sysctls or {})
        self._mtu = mtu
        self._congestion = congestion or (_own_congestion() if loopback else DEFAULT_CONGESTION)
        self._children: list[subprocess.Popen[Any]] = []
        self.hosts: dict[str, Host] = {}
        self._switch = Namespaces.make("switch")
        bridge = f"link add name switch mtu {mtu} type bridge mcast_snooping 0\nlink set dev switch up\n"
        try:
            self.at_switch(["ip", "-batch", "-"], input="link set dev lo up\n" if loopback else bridge)
            if loopback:
                self._set_congestion(self.at_switch)
                self._set_sysctls(self.at_switch)
        except BaseException:
            self._switch.close()
            raise

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def add_host(self, name: str, rate: int | None = None) -> Host:
        """One more host. `name`: at most 15 letters and digits. `rate`: bits per second; None: as fast as it goes."""
        if name in self.hosts or name == "switch" or not name.isalnum() or len(name) > 15:
            raise ValueError(f"{name!r} cannot be the name of one more host")
        if self.loopback:
            if rate is not None:
                raise ValueError("a loopback interface has no rate")
            self.hosts[name] = Host(self, name, "127.0.0.1", Namespaces.make(name, network=self._switch))
            return self.hosts[name]
        number = len(self.hosts) + 1
        host = Host(self, name, f"10.77.{number // 250}.{number % 250 + 1}", Namespaces.make(name))
        self.hosts[name] = host
        # IPv6 would only add its chatter to the counters.
        host.run(["sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6 2>/dev/null || true"])
        self.at_switch(
            ["ip", "-batch", "-"],
            input=f"link add name {name} mtu {self._mtu} type veth peer name eth0 mtu {self._mtu} "
            f"netns {host._namespaces.network}\nlink set dev {name} master switch\nlink set dev {name} up\n",
        )
        host.run(
            ["ip", "-batch", "-"],
            input=f"link set dev lo up\naddr add {host.address}/16 dev eth0\nlink set dev eth0 up\n",
        )
        self._set_congestion(host.run)
        self._set_sysctls(host.run)
        if rate is not None:
            host.set_rate(rate)
        return host

    def _set_congestion(self, run: Callable[[Sequence[str]], str]) -> None:
        # By file: sysctl(8) is not on every machine.
        command = ["sh", "-c", f"echo {shlex.quote(self._congestion)} >{_IPV4}/tcp_congestion_control"]
        try:
            run(command)
        except LabError as error:
            there = (_IPV4 / "tcp_available_congestion_control").read_text().split()
            if self._congestion not in there:
                found = " ".join(there)
                raise LabError(
                    f"this kernel has no TCP congestion control {self._congestion!r}, it has {found}"
                ) from error
            with _allowed_in_namespaces(self._congestion):
                run(command)

    def _set_sysctls(self, run: Callable[[Sequence[str]], str]) -> None:
        for name, value in self._sysctls.items():
            path = Path("/proc/sys") / name.replace(".", "/")
            try:
                run(["sh", "-c", f"echo {shlex.quote(value)} >{shlex.quote(str(path))}"])
            except LabError as error:
                raise LabError(f"a host of this lab cannot set the sysctl {name} to {value!r}: {error}") from error

    def counters(self) -> dict[str, Traffic]:
        """What each host's cable has carried, as the switch counts it."""
        links = json.loads(self.at_switch(["ip", "-j", "-s", "link", "show"]))
        return {
            # The switch receives what the host sends.
            link["ifname"]: Traffic(link["stats64"]["rx"]["bytes"], link["stats64"]["tx"]["bytes"])
            for link in links
            if link["ifname"] in self.hosts
        }

    def at_switch(self, command: Sequence[str], **arguments: Any) -> str:
        """Runs a short command where the other ends of the cables are."""
        return _run(self._switch, command, **arguments)

    def popen(self, enter: Callable[[], None], command: Sequence[str], **arguments: Any) -> subprocess.Popen[Any]:
        """Starts a child that `enter`s a host; see Host.popen."""
        parent = os.getpid()

        def in_child() -> None:
            die_with_parent(parent)
            enter()

        child = subprocess.Popen(command, start_new_session=True, preexec_fn=in_child, **arguments)
        self._children.append(child)
        return child

    def close(self) -> None:
        """Kills what runs on the hosts and lets go of them."""
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # Also what it left behind in its session.
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_KILL_SECONDS)
        for host in self.hosts.values():
            host.close()
        self.hosts = {}
        self._children = []
        self._switch.close()


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _run(namespaces: Namespaces, command: Sequence[str], seconds: float = _COMMAND_SECONDS, **arguments: Any) -> str:
    program = _find(command[0])
    if program is None:
        raise LabError(f"the program {command[0]} is not here")
    if "input" not in arguments:
        arguments["stdin"] = subprocess.DEVNULL
    try:
        done = subprocess.run(
            [program, *command[1:]],
            preexec_fn=namespaces.enter,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            **arguments,
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"{' '.join(command)}: not done within {seconds:g} s") from None
    if done.returncode != 0:
        raise LabError(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout
