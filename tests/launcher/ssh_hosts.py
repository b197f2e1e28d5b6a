"""Hosts with a real ssh daemon each, in namespaces of this machine: own network, process ids, names, shared memory.

    with SshHosts(tmp_path, 3) as hosts:
        launch = spawn(*hosts.here, *BPSLAUNCH, "--hosts", "lh1,lh2", "--ssh-args", hosts.ssh_args, ...)
        hosts[0].crash()

A namespace of its own stands for the machine at which the user sits; a bridge there connects all. Nothing of it is seen
from outside. Names are known to ssh alone, by its configuration, as in many clusters.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import uuid

import pytest
from launching import wait_until

_NETWORK = "10.231.7"


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


class SshHost:
    """One of them. Killing its first process ends everything on it, as a crash does."""

    def __init__(
        self, name: str, number: int, unique: str, folder: pathlib.Path, keys: pathlib.Path, port: int
    ) -> None:
        self.name = name
        self._port = port
        self.address = f"{_NETWORK}.{number}"
        self.namespace = f"bps-{unique}-{number}"
        self.link = f"b{unique}{number}"
        self._folder = folder / name
        self._folder.mkdir()
        self._keys = keys
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, center: str) -> None:
        _run("ip", "netns", "add", self.namespace)
        _run(
            "ip",
            "-n",
            center,
            "link",
            "add",
            self.link,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            self.namespace,
        )
        _run("ip", "-n", center, "link", "set", self.link, "master", "br0", "up")
        _run("ip", "-n", self.namespace, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run("ip", "-n", self.namespace, "link", "set", device, "up")
        config = self._folder / "sshd_config"
        config.write_text(
            f"Port {self._port}\nListenAddress {self.address}\nHostKey {self._keys}/host\nPidFile {self._folder}/pid\n"
            f"AuthorizedKeysFile {self._keys}/user.pub\nStrictModes no\nUsePAM no\nPrintMotd no\n"
            "SetEnv TMPDIR=/dev/shm\n"  # which is its own, see below
        )
        script = (
            f"hostname {self.name}; mount -t tmpfs tmpfs /dev/shm; "
            f"exec {shutil.which('sshd', path='/usr/sbin:/usr/bin')} -D -e -f {config}"
        )
        self._process = subprocess.Popen(
            [
                *("nsenter", f"--net=/run/netns/{self.namespace}"),
                *("unshare", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"),
                *("sh", "-c", script),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self._folder / "log").open("wb"),
        )
        wait_until(lambda: (self._folder / "pid").exists(), lambda: (self._folder / "log").read_text(), 30)

    def processes(self) -> dict[int, str]:
        """What runs on it, but for the daemon and its sessions."""
        return {pid: words for pid, words in self._all().items() if "sshd" not in words.split(" ")[0]}

    def job_folders(self) -> list[str]:
        """Those of the launcher among its temporary files."""
        assert self._process is not None
        shared = pathlib.Path(f"/proc/{self._process.pid}/root/dev/shm")
        return [path.name for path in shared.glob("bpslaunch-*")]

    def sessions(self) -> list[int]:
        """The daemon's processes of open connections."""
        return [pid for pid, words in self._all().items() if words.startswith("sshd: ") and "[listener]" not in words]

    def _all(self) -> dict[int, str]:
        found = {}
        own = pathlib.Path(f"/run/netns/{self.namespace}").stat().st_ino
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (path / "ns" / "net").stat().st_ino != own:
                    continue
                words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if words and not words.startswith(("unshare ", "/usr/sbin/slurmd")):
                    found[int(path.name)] = words
        return found

    def seconds_of_cores(self) -> float:
        """What all processes on it have used so far: those that are there, and those that they have waited for."""
        ticks = 0
        for pid in self._all():
            with contextlib.suppress(OSError):
                stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, stat[11:15]))  # utime, stime, cutime, cstime
        return ticks / os.sysconf("SC_CLK_TCK")

    def crash(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def unplug(self, center: str) -> None:
        """Its network is gone; nobody is told."""
        _run("ip", "-n", center, "link", "set", self.link, "nomaster")

    def remove(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
        for pid in self._all():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, stderr=subprocess.DEVNULL)


class SshHosts:
    """Some hosts `lh1` to `lhN`, and the place from which they are reached. `port`: of their daemons, all one."""

    def __init__(self, folder: pathlib.Path, count: int, port: int = 22) -> None:
        need_ssh_hosts()
        unique = uuid.uuid4().hex[:6]
        keys = folder / "keys"
        keys.mkdir()
        for name in ("host", "user"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name))
        self.center = f"bps-{unique}-c"
        self._hosts = [SshHost(f"lh{number}", number, unique, folder, keys, port) for number in range(1, count + 1)]
        known = " ".join((keys / "host.pub").read_text().split()[:2])
        (keys / "known").write_text("".join(f"{host.name},{host.address} {known}\n" for host in self._hosts))
        self.config = keys / "config"
        self.config.write_text(
            "".join(
                f"Host {host.name}\n  HostName {host.address}\n  HostKeyAlias {host.name}\n" for host in self._hosts
            )
            + f"Host *\n  IdentityFile {keys}/user\n  IdentitiesOnly yes\n  UserKnownHostsFile {keys}/known\n"
        )
        self.ssh_args = f"-F {self.config}"
        # In front of a command: run where the user sits.
        self.here = ["nsenter", f"--net=/run/netns/{self.center}"]

    def __enter__(self) -> SshHosts:
        try:
            pathlib.Path("/run/sshd").mkdir(exist_ok=True)
            _run("ip", "netns", "add", self.center)
            # With an address of its own: one that it has from its ports changes when a host is unplugged, and then
            # nobody else reaches the center for a while.
            _run("ip", "-n", self.center, "link", "add", "br0", "address", "02:b7:00:00:00:fe", "type", "bridge")
            _run("ip", "-n", self.center, "addr", "add", f"{_NETWORK}.254/24", "dev", "br0")
            for device in ("lo", "br0"):
                _run("ip", "-n", self.center, "link", "set", device, "up")
            for host in self._hosts:
                host.start(self.center)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        for host in self._hosts:
            host.remove()
        subprocess.run(["ip", "netns", "del", self.center], check=False, stderr=subprocess.DEVNULL)

    def __getitem__(self, index: int) -> SshHost:
        return self._hosts[index]

    def seconds_of_cores(self) -> float:
        """What the processes on all of them have used so far."""
        return sum(host.seconds_of_cores() for host in self._hosts)

    def wait_empty(self, seconds: float = 15.0) -> None:
        """Until nothing runs on any of them."""
        wait_until(lambda: not self.processes(), lambda: f"left behind: {self.processes()}", seconds)

    def processes(self) -> dict[str, dict[int, str]]:
        found = {host.name: host.processes() for host in self._hosts}
        return {name: processes for name, processes in found.items() if processes}


def need_ssh_hosts() -> None:
    """Skips the test where there can be no such hosts."""
    if os.geteuid() != 0:
        pytest.skip("hosts in namespaces need root")
    for program in ("ip", "nsenter", "unshare", "ssh", "ssh-keygen"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not here")
    if shutil.which("sshd", path="/usr/sbin:/usr/bin") is None:
        pytest.skip("sshd is not here: Debian's package openssh-server")
    made = subprocess.run(
        [
            "unshare",
            "--net",
            "--uts",
            "--ipc",
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "ip",
            "link",
            "set",
            "lo",
            "up",
        ],
        check=False,
        capture_output=True,
    )
    if made.returncode != 0:
        pytest.skip(f"no namespaces here: {made.stderr.decode(errors='replace').strip()}")
