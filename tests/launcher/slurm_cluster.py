"""A real Slurm: munge, a controller and a daemon on each of some hosts in namespaces.

with SlurmCluster(tmp_path, 2) as slurm:
    job = spawn(*slurm.here, "srun", "-N2", "-n4", ..., variables=slurm.variables)
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest
from launching import DEADLINE, wait_until
from ssh_hosts import SshHosts

_PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol", "munged")


class SlurmCluster:
    """Nodes `ln1` to `lnN` with four cores each, as far as Slurm knows, and a partition of all.

    `node_seconds`: of silence, after which Slurm takes a node for lost.
    """

    def __init__(self, folder: pathlib.Path, nodes: int, node_seconds: int = 300) -> None:
        paths = {name: shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") for name in _PROGRAMS}
        missing = [name for name, path in paths.items() if path is None]
        if missing:
            pytest.skip(
                f"{missing[0]} is not here: Debian's slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"
            )
        self._paths = paths
        self._folder = folder
        self._nodes = nodes
        self._node_seconds = node_seconds
        self.hosts = SshHosts(folder, nodes)
        self._named_libraries = _with_plain_names(folder)
        self.here = [*self.hosts.here, *self._named_libraries]
        self.variables = {"SLURM_CONF": str(folder / "slurm.conf"), "HOME": str(folder)}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SlurmCluster:
        self.hosts.__enter__()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.hosts.__exit__()

    def run(self, *words: str) -> str:
        """A command of Slurm; what it prints."""
        return subprocess.run(
            [*self.here, *words],
            check=True,
            capture_output=True,
            text=True,
            env={"PATH": _PATH, **self.variables},
            timeout=DEADLINE,
        ).stdout

    def logs(self) -> str:
        """What the daemons have written last."""
        files = [self._folder / name for name in ("ctld.log", *(f"ln{each}.log" for each in range(1, self._nodes + 1)))]
        return "\n".join(f"{file.name}:\n{file.read_text(errors='replace')[-5000:]}" for file in files)

    def _start(self) -> None:
        folder = self._folder
        key = folder / "munge.key"
        key.write_bytes(b"a key of the tests" * 64)
        key.chmod(0o400)
        names = ("socket", "pid-file", "log-file", "seed-file")
        places = [f"--{name}={folder}/munge.{name}" for name in names]
        self._spawn("munged", [], "--foreground", "--force", f"--key-file={key}", *places)
        wait_until(lambda: (folder / "munge.socket").exists(), lambda: "munged does not start", 30)
        (folder / "state").mkdir()
        nodes = "".join(
            f"NodeName=ln{number} NodeHostname=lh{number} NodeAddr={self.hosts[number - 1].address} Port=6818 CPUs=4 "
            "RealMemory=1000\n"
            for number in range(1, self._nodes + 1)
        )
        center = "10.231.7.254"
        (folder / "slurm.conf").write_text(
            f"""ClusterName=tests
SlurmctldHost=center({center})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/ctld.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n.spool
SlurmdLogFile={folder}/%n.log
TmpFS={folder}/%n.tmp
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
SlurmdTimeout={self._node_seconds}
MessageTimeout={min(10, max(3, self._node_seconds // 2))}
SwitchType=switch/none
{nodes}PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""
        )
        for number in range(1, self._nodes + 1):
            (folder / f"ln{number}.spool").mkdir()
            (folder / f"ln{number}.tmp").mkdir()
        self._spawn("slurmctld", [*self.here, "unshare", "--uts", "sh", "-c", 'hostname center; exec "$@"', "sh"], "-D")
        for number in range(1, self._nodes + 1):
            network = f"--net=/run/netns/{self.hosts[number - 1].namespace}"
            named = ["unshare", "--uts", "sh", "-c", f'hostname lh{number}; exec "$@"', "sh"]
            self._spawn("slurmd", ["nsenter", network, *self._named_libraries, *named], "-D", "-N", f"ln{number}")
        self.wait_ready()

    def wait_ready(self) -> None:
        """Until all nodes are idle."""
        log = self._folder / "ctld.log"
        wait_until(self._ready, lambda: f"no nodes: {self.run('sinfo')}\n{log.read_text()}", 60)

    def _ready(self) -> bool:
        try:
            return self.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(self._nodes)
        except subprocess.CalledProcessError:
            return False

    def _spawn(self, name: str, before: list[str], *words: str) -> None:
        log = (self._folder / f"{name}{len(self._daemons)}.out").open("wb")
        command = [*before, str(self._paths[name]), *words]
        variables = {"PATH": _PATH, "SLURM_CONF": str(self._folder / "slurm.conf")}
        self._daemons.append(
            subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        )


def _with_plain_names(folder: pathlib.Path) -> list[str]:
    """In front of a command: Debian's plugin for PMIx asks for libpmix.so, which is in another package than
    libpmix.so.2; here it is both. Nothing where that is not needed."""
    libraries = next(pathlib.Path("/usr/lib").glob("*/pmix2/lib"), None)
    if libraries is None or (libraries / "libpmix.so").exists():
        return []
    ours = folder / "pmix"
    shutil.copytree(libraries, ours, symlinks=True)
    (ours / "libpmix.so").symlink_to("libpmix.so.2")
    return ["unshare", "--mount", "sh", "-ec", f'mount --bind {ours} {libraries}; exec "$@"', "sh"]


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
