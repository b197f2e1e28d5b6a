"""`bpslaunch --hosts ... -- command`: a whole job over several hosts."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shlex
from collections.abc import Callable, Sequence

from ..affinity import chosen_by_hand, servers_by_hand
from ..arguments import Arguments
from ..child import Role
from ..command import debugged, shell_words
from ..dry_run import shell_line
from ..environment import PLACES, Environment
from ..failure import LaunchError
from ..job import require_shared
from ..job_token import token_of
from ..output import OutputFiles, Printer
from .host_check import HostCheck
from .host_list import Host, parse_host, parse_hosts, read_byteps_hostfile, read_hostfile
from .host_supervisor import HostSupervisor
from .layout import HostLayout, common_variables, host_variables, lay_out, members, passed_variables
from .link import hidden_from
from .meeting_point import coordinator_point
from .shared_names import shared_names
from .slurm_allocation import Allocation, of_other_steps
from .ssh import SshOptions, agent_command, command

Guarded = Callable[[Callable[[int], int], float, Printer], int]


def run_hosts(
    arguments: Arguments,
    environment: Environment,
    printer: Printer,
    guarded: Guarded,
    allocated: Allocation | None = None,
) -> int:
    """Runs the job and returns its exit code.

    Args:
        arguments: the command line
        environment: the variables here
        printer: for the output
        guarded: runs the supervisor in a process of its own
        allocated: the hosts, if Slurm has given them and the command line names none
    """
    if environment.role() is not None:
        raise LaunchError(f"DMLC_ROLE={environment.role()} asks for one role, hosts for a whole job: unset it")
    options = ssh_options(arguments)
    if allocated is None:
        layout = plan_hosts(arguments, environment)
        commands = [command(part.host, options) for part in layout.parts]
    else:
        if arguments.server_tasks is not None:
            allocated = allocated.with_server_tasks(arguments.server_tasks)
        hosts = (allocated.worker_hosts, allocated.server_hosts)
        servers = arguments.servers
        if servers is None:  # as for tasks
            servers = environment.integer("DMLC_NUM_SERVER", minimum=0)
        layout = lay_out(*hosts, arguments.workers, servers, None, environment, arguments.colocate)
        commands = [allocated.command(part.host, agent_command(options)) for part in layout.parts]
    variables = passed_variables(environment, arguments.env)
    if allocated is not None:
        # The step on each node knows its GPUs; what srun was not to see is for the trainer.
        if "CUDA_VISIBLE_DEVICES" not in environment.chosen(arguments.env):
            variables.pop("CUDA_VISIBLE_DEVICES", None)
        variables = {**of_other_steps(environment.variables()), **variables}
    ignored = ignored_variables(arguments, environment, allocated is not None)
    if ignored:
        printer.say(f"ignored, since this is a job over several hosts: {ignored}")
    if arguments.remote.interface is not None:
        variables["DMLC_INTERFACE"] = arguments.remote.interface
    if not os.environ.get("BYTEPS_PLUGIN_PATH", "").strip():
        variables.pop("BYTEPS_PLUGIN_PATH", None)  # Each agent finds the plugins of its own checkout.
    variables["BYTEPS_JOB_TOKEN"] = token_of(environment)
    words = worker_words(arguments)
    folders = _current_folder() if arguments.remote.directory is None else [arguments.remote.directory]
    if arguments.check:
        return guarded(
            lambda lifeline: HostCheck(arguments, layout, commands, words, variables, folders, lifeline, printer).run(),
            arguments.kill_after,
            printer,
        )
    if not words:
        raise LaunchError("no command to run; usage: bpslaunch --hosts A:4,B:4 [options] command [argument ...]")
    if arguments.dry_run:
        return _print(layout, commands, words, variables, environment, arguments, printer)
    interface = variables.get("DMLC_INTERFACE")

    def supervise(lifeline: int) -> int:
        files = None if arguments.output_dir is None else OutputFiles(arguments.output_dir)
        supervisor = HostSupervisor(
            printer, files, arguments.kill_after, lifeline, arguments.verbose, arguments.host_names
        )
        return supervisor.run_hosts(
            layout,
            commands,
            words,
            lambda home, links: (
                coordinator_point(home, links, interface, arguments.remote.scheduler_ip),
                arguments.port or 0,
            ),
            lambda root: {**variables, **common_variables(layout, root, environment)},
            folders,
            interface,
        )

    return guarded(supervise, arguments.kill_after, printer)


def _current_folder() -> list[str]:
    try:
        return shared_names(str(pathlib.Path.cwd()))
    except OSError as error:
        raise LaunchError(f"the current folder is gone ({error.strerror}): name one by --directory") from None


def _print(
    layout: HostLayout,
    commands: Sequence[list[str]],
    words: Sequence[str],
    variables: dict[str, str],
    environment: Environment,
    arguments: Arguments,
    printer: Printer,
) -> int:
    """What would run, and where. Addresses and free ports are known to the hosts alone."""
    home = layout.coordinator
    root = None
    if home is not None:
        root = (home.host.machine, arguments.port or 0)
    common = common_variables(layout, root, environment)
    common.pop("BYTEPS_JOB_ID", None)
    if root is not None and root[1] == 0:
        common["DMLC_PS_ROOT_PORT"] = "(a free one)"
    for words_here, (part, specs) in zip(commands, members(layout)):
        without = [word for name in sorted(hidden_from(words_here)) for word in ("-u", name)]
        printer.result(
            f"[host {part.host.machine}] {shlex.join([*(['env', *without] if without else []), *words_here])}"
        )
        cores = chosen_by_hand(environment, part.workers)
        of_servers = iter(servers_by_hand(environment, len(part.servers)))
        for spec in specs:
            role, rank = spec.role, spec.name.rpartition(" ")[2]
            cpus = None
            own = {**variables, **common, **host_variables(part, layout)}
            own["DMLC_ROLE"] = "scheduler" if role is Role.COORDINATOR else role.value
            if role is Role.WORKER:
                own["DMLC_WORKER_ID"], own["BYTEPS_LOCAL_RANK"] = str(part.worker_host), rank.rpartition(".")[2]
                own["BYTEPS_LOCAL_SIZE"] = str(part.workers)
                cpus = cores[int(own["BYTEPS_LOCAL_RANK"])]
            elif role is Role.SERVER:
                own["DMLC_RANK"] = rank
                cpus = next(of_servers)
            command_there = debugged(shell_words(words) if role is Role.WORKER else ["byteps_server"], environment)
            # Of the variables there only these are known.
            printer.result(f"[{spec.name}] {shell_line(command_there, own, {}, cpus)}")
    return 0


def plan_hosts(arguments: Arguments, environment: Environment) -> HostLayout:
    """Who runs where; LaunchError says what cannot be."""
    remote = arguments.remote
    if remote.hosts is not None:
        workers = parse_hosts("--hosts", remote.hosts)
    elif remote.hostfile is not None:
        workers = read_hostfile("--hostfile", remote.hostfile)
    else:
        size = environment.local_workers()
        found = read_byteps_hostfile("--worker-hostfile", remote.worker_hostfile_of_byteps or "")
        workers = [Host(host.name, size, host.ssh_port) for host in found]
    servers: list[Host] = []
    if remote.server_hosts is not None:
        servers = parse_hosts("--server-hosts", remote.server_hosts)
    elif remote.server_hostfile is not None:
        # Beside BytePS's file of workers it is BytePS's, too, whose numbers are ports.
        byteps = remote.worker_hostfile_of_byteps is not None
        servers = (read_byteps_hostfile if byteps else read_hostfile)("--server-hostfile", remote.server_hostfile)
    elif remote.server_hostfile_of_byteps is not None:
        servers = read_byteps_hostfile("--server-hostfile", remote.server_hostfile_of_byteps)
    coordinator = None
    named = remote.coordinator or remote.scheduler_ip
    if named is not None:
        option = "--coordinator" if remote.coordinator is not None else "--scheduler-ip"
        coordinator = dataclasses.replace(parse_host(option, named), ssh_port=remote.scheduler_ssh_port)
    elif remote.scheduler_ssh_port is not None:
        coordinator = workers[0].also(dataclasses.replace(workers[0], ssh_port=remote.scheduler_ssh_port))
    numbers = (arguments.workers, arguments.servers)
    layout = lay_out(workers, servers, *numbers, coordinator, environment, arguments.colocate)
    if layout.coordinator is None and remote.scheduler_ssh_port is not None:
        raise LaunchError("--scheduler-ssh-port: one worker for itself has no coordinator: leave it out")
    if layout.worker_hosts == 1 and layout.workers > 1 and layout.servers == 0:
        require_shared(layout.workers, environment, "ask for a server (--servers 1)")
    return layout


# What says the same over several hosts; None: what each host finds out by itself.
_IN_PLACE = {
    "DMLC_NUM_WORKER": "--hosts",
    "DMLC_WORKER_ID": "--hosts",
    "DMLC_NUM_SERVER": "--servers",
    "DMLC_PS_ROOT_URI": "--coordinator",
    "DMLC_PS_ROOT_PORT": "--port",
    "DMLC_NODE_HOST": "DMLC_INTERFACE",
    "BYTEPS_LOCAL_SIZE": "--hosts a:N",
    "BYTEPS_HOST_ID": None,
}
_COUNTS_IN_ALLOCATION = "DMLC_NUM_SERVER"


def ignored_variables(arguments: Arguments, environment: Environment, allocated: bool) -> str:
    """The variables that place one process, for people; empty: none is set. They are left over from another launch, or
    were meant for this one."""
    followed = {_COUNTS_IN_ALLOCATION} if allocated else set()
    if arguments.remote.worker_hostfile_of_byteps is not None:
        followed.add("BYTEPS_LOCAL_SIZE")
    followed.update(set(environment.chosen(arguments.env)) - set(PLACES))
    found = []
    for name, instead in _IN_PLACE.items():
        value = environment.text(name)
        if value is not None and name not in followed:
            found.append(f"{name}={value}" + (f" (see {instead})" if instead is not None else ""))
    return ", ".join(found)


def ssh_options(arguments: Arguments) -> SshOptions:
    """How the hosts are reached."""
    remote = arguments.remote
    return SshOptions(
        port=remote.ssh_port,
        user=remote.user,
        identity=remote.ssh_identity,
        arguments=remote.ssh_args,
        bpslaunch=remote.bpslaunch,
    )


def worker_words(arguments: Arguments) -> list[str]:
    """The command of a worker. BytePS's dist_launcher has bpslaunch in front of it, which we are ourselves."""
    words = list(arguments.command)
    if arguments.remote.worker_hostfile_of_byteps is not None and words[:1] == ["bpslaunch"]:
        return words[1:]
    return words
