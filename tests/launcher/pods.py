"""Pods of this machine: what the containers of a manifest run, with the variables, names and namespaces of a pod.

    with Pods(tmp_path, real) as pods:
        pods.start(pod)
        pods.publish(pods.names(pod))       # the name service of the cluster knows it from now on

Each pod has its own network, process ids, names and shared memory; a bridge connects them. Its own name is in its
/etc/hosts from the beginning, as the kubelet writes it; those of others come by publish().
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import uuid

import pytest
from launching import BPSLAUNCH, COOKIE, DEADLINE, Launch, wait_until

_HERE = pathlib.Path(__file__).parent
_HEALTH = _HERE.parents[1] / "docker" / "health"
_DIGITS = "/opt/byteps/examples/torch/digits.py"
_ENTRY = {"byteps-server:0.1.0": ["/opt/byteps/bin/byteps_server"], "byteps-worker:0.1.0": ["bpslaunch"]}


@dataclasses.dataclass
class Pod:
    """One pod with one container."""

    name: str
    subdomain: str
    image: str
    command: list[str]  # in place of the image's own; empty: that
    variables: dict[str, str]
    probes: dict[str, list[str]] = dataclasses.field(default_factory=dict)  # commands, by the kind of probe
    arguments: list[str] = dataclasses.field(default_factory=list)  # for the image's own command
    has_pause: bool = False  # the container's process is not process 1

    def words(self, rounds: int, server: str) -> list[str]:
        """What is run here: a trainer of this many rounds in place of the example."""
        trainer = [sys.executable, str(_HERE / "trainer.py"), str(rounds), "1000"]
        found: list[str] = []
        for word in self.command or [*_ENTRY[self.image], *self.arguments]:
            if word == "bpslaunch":
                found += BPSLAUNCH
            elif word == "torchrun":
                found += [sys.executable, "-m", "torch.distributed.run"]
            elif word == "/opt/byteps/bin/byteps_server":
                found.append(server)
            elif word == _DIGITS:
                found += [str(_HERE / "joiner.py"), str(rounds)] if "torchrun" in self.command else trainer
            elif word != "python":
                found.append(word)
        return found


class Pods:
    """Some pods, in order of their start. `real`: the variables that name library and server here."""

    def __init__(self, folder: pathlib.Path, real: dict[str, str]) -> None:
        self._folder = folder
        self._real = real
        self._unique = uuid.uuid4().hex[:6]
        self._center = f"bps-{self._unique}-p"
        self._known: dict[str, str] = {}  # what the name service tells: a line of /etc/hosts, by the pod's name
        self._pods: dict[str, tuple[Pod, Launch, str]] = {}  # and its address
        self._spaces: list[str] = []

    def __enter__(self) -> Pods:
        need_pods()
        try:
            _ip("netns", "add", self._center)
            _ip("-n", self._center, "link", "add", "br0", "type", "bridge")
            _ip("-n", self._center, "link", "set", "br0", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.remove_all()
        subprocess.run(["ip", "netns", "del", self._center], check=False, stderr=subprocess.DEVNULL)

    def remove_all(self) -> None:
        """They are gone, and can be started anew, at other addresses. The name service has not heard of it yet."""
        for _, launch, _ in self._pods.values():
            launch.process.kill()  # and with it all of the pod
            launch.process.wait()
        self._pods.clear()
        for space in self._spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, stderr=subprocess.DEVNULL)

    def start(self, pod: Pod, rounds: int = 3) -> Launch:
        number = len(self._spaces) + 1
        space, address = f"bps-{self._unique}-p{number}", f"10.244.0.{number}"
        self._spaces.append(space)
        _ip("netns", "add", space)
        link = f"p{self._unique}{number}"
        _ip("-n", self._center, "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("-n", self._center, "link", "set", link, "master", "br0", "up")
        _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", space, "link", "set", device, "up")
        self._write_names(pod, address)
        names = self._names(pod)
        setup = f"hostname {shlex.quote(pod.name)}; mount --bind {names} /etc/hosts; mount -t tmpfs tmpfs /dev/shm"
        run = '"$@" & wait $!' if pod.has_pause else 'exec "$@"'
        spaces = ["unshare", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        words = ["nsenter", f"--net=/run/netns/{space}", *spaces, "sh", "-c", f"{setup}; {run}", "sh"]
        launch = Launch([*words, *pod.words(rounds, self._real["BYTEPS_SERVER_BINARY"])], self._all(pod), self._folder)
        self._pods[pod.name] = (pod, launch, address)
        return launch

    def publish(self, name: str) -> None:
        """The address of this pod is known by its name from now on."""
        pod, _, address = self._pods[name]
        self._known[name] = _line(pod, address)
        for other, _, address in self._pods.values():
            if other is not pod:
                self._write_names(other, address)

    def output(self) -> str:
        """Of all pods."""
        return "".join(f"{name}:\n{launch.stdout}{launch.stderr}" for name, (_, launch, _) in self._pods.items())

    def probe(self, name: str, kind: str) -> bool:
        """Whether this probe of a pod succeeds, as the kubelet performs it."""
        pod, launch, _ = self._pods[name]
        assert pod.probes[kind] == ["/opt/byteps/bin/health"]
        spaces = ["nsenter", f"--target={_child(launch.process.pid)}", *("--net", "--uts", "--ipc", "--mount", "--pid")]
        command = [*spaces, "--", "sh", str(_HEALTH)]
        environment = self._all(pod)
        done = subprocess.run(command, env=environment, check=False, stdin=subprocess.DEVNULL, timeout=DEADLINE)
        return done.returncode == 0

    def delete(self, name: str) -> None:
        """As `kubectl delete pod`: SIGTERM for the container's first process."""
        pod, launch, _ = self._pods[name]
        first = _child(launch.process.pid)
        os.kill(_child(first) if pod.has_pause else first, signal.SIGTERM)

    def _write_names(self, pod: Pod, address: str) -> None:
        others = [line for name, line in self._known.items() if name != pod.name]
        # In one piece: a pod may read it now.
        with self._names(pod).open("r+" if self._names(pod).exists() else "w") as names:
            names.write("\n".join(["127.0.0.1 localhost", _line(pod, address), *others, ""]))
            names.truncate()

    def _names(self, pod: Pod) -> pathlib.Path:
        return self._folder / f"hosts-{pod.name}"

    def _all(self, pod: Pod) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("DMLC_", "BYTEPS_", "PET_"))}
        folder = self._folder / f"tmp-{pod.name}"
        folder.mkdir(exist_ok=True)
        cookie = {COOKIE: f"pod-{self._unique}-{pod.name}", "TMPDIR": str(folder)}
        return {**clean, **self._real, **pod.variables, **cookie}


def _line(pod: Pod, address: str) -> str:
    return f"{address} {pod.name}.{pod.subdomain} {pod.name}"


def need_pods() -> None:
    """Skips the test where there can be no pods."""
    if os.geteuid() != 0:
        pytest.skip("pods in namespaces need root")
    spaces = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc"]
    made = subprocess.run([*spaces, "ip", "link", "set", "lo", "up"], check=False, capture_output=True)
    if made.returncode != 0:
        pytest.skip(f"no namespaces here: {made.stderr.decode(errors='replace').strip()}")


def _child(pid: int) -> int:
    """The first child of a process, once it is there."""
    path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")

    def children() -> list[str]:
        with contextlib.suppress(OSError):
            return path.read_text().split()
        return []

    wait_until(children, lambda: f"process {pid} has no child", 30)
    return int(children()[0])


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
