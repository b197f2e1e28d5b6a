"""Checks before the job: can this host reach the coordinator, over which interface, and is the port free?"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

from .addresses import Address, host_port, resolve
from .environment import Environment
from .failure import LaunchError
from .finding import Finding, fail, note, ok
from .greeting import read_greeting
from .installation import library, library_version
from .network_interface import ipv4_address, is_up

_CONNECT_SECONDS = 5.0


def check_network(environment: Environment, role: str, root: tuple[str, int]) -> Iterator[Finding]:
    """Checks for one role by hand whose coordinator is at `root`."""
    interface = environment.text("DMLC_INTERFACE")
    interface_address = None
    if interface is not None:
        try:
            interface_address = _address_of(interface)
            yield ok("interface", f"DMLC_INTERFACE={interface}: {interface_address}")
        except OSError as error:
            there = ", ".join(name for _, name in socket.if_nameindex())
            yield fail("interface", f"DMLC_INTERFACE={interface}: {error.strerror}. Interfaces here: {there}")
    node_host = environment.text("DMLC_NODE_HOST")
    if node_host is not None:
        yield _check_node_host(node_host)
    try:
        address = resolve(root[0])
    except OSError as error:
        yield fail("route", f"DMLC_PS_ROOT_URI={root[0]}: {error.strerror}: correct it, or the resolution of names")
        return
    yield _check_route(address, root, interface, interface_address)
    if role == "scheduler":
        yield check_port(address, root[1], environment.flag("DMLC_USE_KUBERNETES"))
    else:
        yield _check_coordinator(environment, root)


def check_port(address: Address, port: int, any_address: bool = False) -> Finding:
    """Whether the coordinator can listen at this address of this host."""
    family, host = address
    where = host_port(host, port) if port else f"a port at {host}"
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("" if any_address else host, port))
            probe.listen(1)
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return fail(
                "port",
                f"{host} is no address of this host, so the coordinator cannot listen there: start it on that "
                "host, or correct DMLC_PS_ROOT_URI",
            )
        return fail("port", f"{where}: {error.strerror}: choose another port, or end what uses it (`ss -ltnp`)")
    return ok("port", f"{where} is free")


def _address_of(interface: str) -> str:
    """The IPv4 address of a network interface that is up; OSError says what is wrong with it."""
    try:
        up = is_up(interface)
    except OSError as error:
        raise OSError(error.errno, "no such interface") from None
    if not up:
        raise OSError(errno.ENETDOWN, "the interface is down")
    try:
        return ipv4_address(interface)
    except OSError as error:
        raise OSError(error.errno, "the interface has no IPv4 address") from None


def _check_node_host(host: str) -> Finding:
    try:
        family, address = resolve(host)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError as error:
        return fail(
            "address",
            f"DMLC_NODE_HOST={host} is not an address of this host ({error.strerror}): "
            "it must be the one by which the others reach this host",
        )
    return ok("address", f"DMLC_NODE_HOST={host}")


def _check_route(
    address: Address, root: tuple[str, int], interface: str | None, interface_address: str | None
) -> Finding:
    try:
        with socket.socket(address[0], socket.SOCK_DGRAM) as probe:
            probe.connect((address[1], root[1]))  # Sends nothing: asks the kernel for the route.
            own = probe.getsockname()[0]
    except OSError as error:
        return fail("route", f"no route to DMLC_PS_ROOT_URI={root[0]} ({address[1]}): {error.strerror}")
    if interface_address is not None and own != interface_address:
        return note(
            "route",
            f"to {root[0]} goes out from {own}, but DMLC_INTERFACE={interface} has {interface_address}: "
            "right only if the others can reach that address",
        )
    return ok("route", f"to {root[0]} goes out from {own}")


def _check_coordinator(environment: Environment, root: tuple[str, int]) -> Finding:
    where = host_port(*root)
    try:
        with socket.create_connection(root, timeout=_CONNECT_SECONDS) as connection:
            connection.settimeout(_CONNECT_SECONDS)
            greeting = read_greeting(connection)
    except ConnectionRefusedError:
        return note("coordinator", f"{where}: the host answers, no coordinator listens yet; start it before or after")
    except ValueError as error:
        return fail("coordinator", f"{where}: something listens there, but {error}: correct DMLC_PS_ROOT_PORT")
    except socket.timeout:
        return fail(
            "coordinator",
            f"{where}: no answer within {_CONNECT_SECONDS:g} s: a firewall on the way, or the wrong address",
        )
    except OSError as error:
        return fail("coordinator", f"{where}: {error.strerror}: correct DMLC_PS_ROOT_URI, or the network")
    try:
        own = library_version(library(environment))
    except (LaunchError, OSError):
        own = greeting.release  # It has its own finding.
    if own != greeting.release:
        return fail(
            "coordinator", f"{where} is release {greeting.release}, we are {own}: install one release everywhere"
        )
    secret = "wants the job's token" if greeting.token_required else "wants no token"
    return ok("coordinator", f"{where} answers: release {greeting.release}, {secret}")
