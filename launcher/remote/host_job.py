"""`bpslaunch --hosts ... -- command`: a whole job over several hosts."""

from __future__ import annotations

import os
import pathlib
import shlex
from collections.abc import Callable, Sequence

from ..affinity import chosen_by_hand
from ..arguments import Arguments
from ..child import Role
from ..dry_run import shell_line
from ..environment import Environment
from ..environments.addresses import meeting_address
from ..failure import LaunchError
from ..job import require_shared
from ..output import OutputFiles, Printer
from .host_check import HostCheck
from .host_list import Host, parse_hosts, read_byteps_hostfile, read_hostfile
from .host_supervisor import HostSupervisor
from .layout import HostLayout, common_variables, host_variables, lay_out, members, passed_variables, token_of
from .link import Link
from .slurm_allocation import Allocation
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
        hosts = (allocated.worker_hosts, allocated.server_hosts)
        layout = lay_out(*hosts, arguments.workers, arguments.servers, None, environment, arguments.colocate)
        commands = [allocated.command(part.host, agent_command(options)) for part in layout.parts]
    variables = passed_variables(environment, arguments.env)
    if arguments.remote.interface is not None:
        variables["DMLC_INTERFACE"] = arguments.remote.interface
    variables["BYTEPS_JOB_TOKEN"] = token_of(environment)
    words = worker_words(arguments)
    if arguments.check:
        return guarded(
            lambda lifeline: HostCheck(arguments, layout, commands, words, variables, lifeline, printer).run(),
            arguments.kill_after,
            printer,
        )
    if not words:
        raise LaunchError("no command to run; usage: bpslaunch --hosts A:4,B:4 [options] command [argument ...]")
    if arguments.dry_run:
        return _print(layout, commands, words, variables, environment, arguments, printer)
    folder = arguments.remote.directory or str(pathlib.Path.cwd())
    interface = variables.get("DMLC_INTERFACE")

    def supervise(lifeline: int) -> int:
        files = None if arguments.output_dir is None else OutputFiles(arguments.output_dir)
        supervisor = HostSupervisor(printer, files, arguments.kill_after, lifeline, arguments.verbose)
        return supervisor.run_hosts(
            layout,
            commands,
            words,
            lambda home, links: (
                meeting_point(arguments, variables.get("DMLC_INTERFACE"), home, links),
                arguments.port or 0,
            ),
            lambda root: {**variables, **common_variables(layout, root, environment)},
            folder,
            interface,
        )

    return guarded(supervise, arguments.kill_after, printer)


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
        root = (arguments.remote.scheduler_ip or home.host.machine, arguments.port or 0)
    common = common_variables(layout, root, environment)
    common.pop("BYTEPS_JOB_ID", None)
    if root is not None and root[1] == 0:
        common["DMLC_PS_ROOT_PORT"] = "(a free one)"
    for words_here, (part, specs) in zip(commands, members(layout)):
        printer.result(f"[host {part.host.machine}] {shlex.join(words_here)}")
        cores = chosen_by_hand(environment, part.workers)
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
            command_there = list(words) if role is Role.WORKER else ["byteps_server"]
            printer.result(f"[{spec.name}] {shell_line(command_there, own, os.environ, cpus)}")
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
        servers = read_hostfile("--server-hostfile", remote.server_hostfile)
    elif remote.server_hostfile_of_byteps is not None:
        servers = read_byteps_hostfile("--server-hostfile", remote.server_hostfile_of_byteps)
    coordinator = None
    named = remote.coordinator or remote.scheduler_ip
    if named is not None:
        (coordinator,) = parse_hosts("--coordinator", named if ":" not in named or "[" in named else f"[{named}]")
        coordinator = Host(coordinator.name, None, remote.scheduler_ssh_port)
    numbers = (arguments.workers, arguments.servers)
    layout = lay_out(workers, servers, *numbers, coordinator, environment, arguments.colocate)
    if layout.worker_hosts == 1 and layout.workers > 1 and layout.servers == 0:
        require_shared(layout.workers, environment, "ask for a server (--servers 1)")
    return layout


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


def meeting_point(arguments: Arguments, interface: str | None, home: Link, links: Sequence[Link]) -> str:
    """The address of the coordinator's host for the others: that of the interface, if one is named; else that by which
    ssh reaches it, or by which the others' ssh daemons see us, if it is this host; else one that they share a network
    with."""
    if arguments.remote.scheduler_ip is not None:
        return arguments.remote.scheduler_ip
    assert home.hello is not None
    others = [link.hello["networks"] for link in links if link.hello is not None and link is not home]
    if interface is not None:
        if not home.hello["networks"]:
            raise LaunchError(f"host {home.machine}: DMLC_INTERFACE={interface}: no such interface, or without address")
        return meeting_address(home.hello["networks"], others or [home.hello["networks"]])
    if home.hello.get("address"):
        return str(home.hello["address"])
    for link in links:
        if link.hello is not None and link.hello.get("launcher_address"):
            return str(link.hello["launcher_address"])
    return meeting_address(home.hello["networks"], others)
