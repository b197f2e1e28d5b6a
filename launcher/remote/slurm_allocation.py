"""The hosts of a Slurm allocation, within sbatch and salloc: `bpslaunch -- python train.py` needs no more arguments.

Agents are started by srun in place of ssh, one step for each node. The tasks that were asked for are the workers
(`--ntasks-per-node=4`). In a heterogeneous job the first component has the workers, the second the servers.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Mapping, Sequence

from ..failure import LaunchError
from .host_list import Host

_OPTIONS = (
    "--nodes=1",
    "--ntasks=1",
    "--overlap",
    "--mpi=none",
    "--cpu-bind=none",
    "--quiet",
    "--unbuffered",
    "--kill-on-bad-exit=1",
    "--export=ALL",  # With `sbatch --export=NONE` steps have no variables of the script, HOME included.
)
# What options of sbatch, or a script, have left for steps of their own. An agent's step is one task that has all of its
# node; not each of these variables can be taken back by an option of srun.
_OF_OTHER_STEPS = re.compile(
    "SRUN_(CPUS_PER_TASK|TRES_PER_TASK|ERROR|INPUT|OUTPUT)|SLURM_(CPU_BIND|MEM_BIND|GPU_BIND|GPUS|CPUS_PER|MEM_PER|TRES|NTASKS_PER|DIST|STD...?MODE).*|"
    "SLURM_(ACCEL_BIND|CORE_SPEC|EXACT|EXCLUSIVE|GRES|HINT|HOSTFILE|LABELIO|OVERCOMMIT|THREADS|THREAD_SPEC|"
    "THREADS_PER_CORE|WHOLE)"
)
# Slurm's numbers of steps that have no tasks: of the shell that salloc starts on a node, of a batch script, of daemons.
_FIRST_WITHOUT_TASKS = 0xFFFFFFF0
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclasses.dataclass(frozen=True)
class Allocation:
    """The nodes that Slurm has given us."""

    worker_hosts: list[Host]
    server_hosts: list[Host]
    groups: dict[str, int]  # component of a heterogeneous job, by node; empty: it is none

    def with_server_tasks(self, count: int) -> Allocation:
        """The same nodes with the last `count` tasks as servers. LaunchError if no worker is left."""
        if self.server_hosts:
            raise LaunchError(f"--server-tasks {count}: the second component has the servers already")
        tasks = sum(host.slots or 1 for host in self.worker_hosts)
        if count >= tasks:
            raise LaunchError(f"--server-tasks {count}: the allocation has {tasks} tasks: none is left for workers")
        workers: list[Host] = []
        servers: list[Host] = []
        for host in reversed(self.worker_hosts):
            slots = host.slots or 1
            taken = min(slots, count)
            count -= taken
            servers[:0] = [dataclasses.replace(host, slots=taken)] if taken else []
            workers[:0] = [dataclasses.replace(host, slots=slots - taken)] if slots > taken else []
        return Allocation(workers, servers, {})

    def command(self, host: Host, agent: Sequence[str]) -> list[str]:
        """What runs here to have an agent on a node."""
        group = self.groups.get(host.machine)
        which = [] if group is None else [f"--het-group={group}"]
        return ["srun", *_OPTIONS, *which, f"--nodelist={host.machine}", *agent]


def of_other_steps(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables by which srun would give the step of an agent less than the whole node."""
    return {name: value for name, value in variables.items() if _OF_OTHER_STEPS.fullmatch(name)}


def allocation(variables: Mapping[str, str]) -> Allocation | None:
    """The allocation that this process is in, outside of its steps; None if it is in none."""
    if "SLURM_JOB_ID" not in variables or _is_task(variables.get("SLURM_STEP_ID", "")):
        return None
    if shutil.which("srun", path=variables.get("PATH")) is None:
        return None  # In a container without Slurm's programs: this host is all that can be reached.
    if variables.get("SLURM_HET_SIZE", "0") not in ("0", "1"):
        if variables["SLURM_HET_SIZE"] != "2":
            raise LaunchError(
                f"the heterogeneous job has {variables['SLURM_HET_SIZE']} components: bpslaunch takes two, the first "
                "for workers, the second for servers"
            )
        workers = _nodes(variables, "_HET_GROUP_0")
        servers = _nodes(variables, "_HET_GROUP_1")
        if not (workers and servers):
            raise LaunchError(
                "which nodes the components of the heterogeneous job have is not known: sbatch tells it by "
                "SLURM_JOB_NODELIST_HET_GROUP_0 and _1, salloc does not: use sbatch, or --hosts and --server-hosts"
            )
        groups = {host.machine: 0 for host in workers} | {host.machine: 1 for host in servers}
        return Allocation(workers, servers, groups)
    hosts = _nodes(variables, "")
    return Allocation(hosts, [], {}) if hosts else None


def without_srun(variables: Mapping[str, str]) -> str | None:
    """What to say of an allocation of several tasks or nodes of which this process can reach its own host alone, since
    Slurm's programs are not here, as in a container; None if there is nothing to say."""
    if "SLURM_JOB_ID" not in variables or _is_task(variables.get("SLURM_STEP_ID", "")):
        return None
    names = ("SLURM_JOB_NUM_NODES", "SLURM_NTASKS")
    found = [f"{name}={variables[name]}" for name in names if variables.get(name, "1") != "1"]
    if not found or shutil.which("srun", path=variables.get("PATH")) is not None:
        return None
    return (
        f"a Slurm allocation ({', '.join(found)}), but no srun here, as in a container: only this host takes part; run "
        "bpslaunch outside of the container, or name the workers of this host by --workers N"
    )


def within_step(variables: Mapping[str, str]) -> str | None:
    """What to say in a step of one task, as the shell of `srun -n1 --pty bash`, in an allocation of several nodes;
    None if this is none. A step does not look at the rest of the allocation."""
    nodes = variables.get("SLURM_JOB_NUM_NODES", "1")
    if not _is_task(variables.get("SLURM_STEP_ID", "")) or variables.get("SLURM_STEP_NUM_TASKS") != "1" or nodes == "1":
        return None
    return (
        f"a step of one task in an allocation of {nodes} nodes: only this host takes part; run bpslaunch outside of "
        "srun, or name the workers of this host by --workers N"
    )


def _is_task(step: str) -> bool:
    return step != "" and not (step.isdecimal() and int(step) >= _FIRST_WITHOUT_TASKS)


def _nodes(variables: Mapping[str, str], suffix: str) -> list[Host]:
    names = variables.get(f"SLURM_JOB_NODELIST{suffix}") or variables.get(f"SLURM_NODELIST{suffix}")
    if not names:
        return []
    found = expand_nodes(names)
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None:
        raise LaunchError(f"SLURM_JOB_NODELIST{suffix}={names}: {twice} is there twice")
    tasks = variables.get(f"SLURM_TASKS_PER_NODE{suffix}")
    asked = any(f"SLURM_{name}{suffix}" in variables for name in ("NTASKS", "NTASKS_PER_NODE", "NPROCS"))
    counts = expand_counts(tasks) if tasks and asked else [1] * len(found)
    if len(counts) != len(found):
        raise LaunchError(
            f"SLURM_JOB_NODELIST={names} has {len(found)} nodes, SLURM_TASKS_PER_NODE={tasks} is for others"
        )
    return [Host(name, count) for name, count in zip(found, counts)]


def expand_nodes(text: str) -> list[str]:
    """The names of a host list: `a[1-2,04],b`, `r[0-1]n[0-1]`. LaunchError if it is none."""
    names = []
    for part in _parts(text):
        found = [""]
        for piece in re.split(r"(\[[^\]]*\])", part):
            ends = _numbers(text, piece[1:-1]) if piece.startswith("[") else [piece]
            found = [begin + end for begin in found for end in ends]
        names += found
    return names


def _parts(text: str) -> list[str]:
    """Cut at commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for index, sign in enumerate(text):
        depth += (sign == "[") - (sign == "]")
        if sign == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    if depth != 0:
        raise LaunchError(f"not a list of nodes: {text}")
    return [part for part in [*parts, text[start:]] if part]


def _numbers(text: str, inside: str) -> list[str]:
    found = []
    for each in inside.split(","):
        match = _RANGE.fullmatch(each)
        if match is None:
            raise LaunchError(f"not a list of nodes: {text}")
        first, last = match[1], match[2] or match[1]
        found += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    return found


def expand_counts(text: str) -> list[int]:
    """The numbers of `2(x3),1`. LaunchError if it is none."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None:
            raise LaunchError(f"SLURM_TASKS_PER_NODE={text}: expected such as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
