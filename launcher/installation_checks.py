"""Checks before the job: are all parts of BytePS here, and of one version?"""

from __future__ import annotations

import contextlib
import importlib.metadata
import pathlib
import resource
import sys
from collections.abc import Iterator

from . import installation
from .environment import Environment
from .failure import LaunchError
from .finding import Finding, fail, note, ok

# Within one host, without servers.
_LOCAL_TRANSPORT = "shm"
_DEFAULT_TRANSPORT = "auto"
# What "auto" comes down to on a host without RDMA; the others need not be installed.
_FALLBACK_TRANSPORT = "tcp"
# What "auto" looks for, in this order.
_SCHEDULERS = ("credit", "priority", "fifo")
# What DMLC_ENABLE_RDMA of the original means here; the others have no counterpart.
_ORIGINAL = {"0": "tcp", "zmq": "tcp", "1": "verbs", "ibverbs": "verbs", "fabric": "auto"}
# Transports that register memory with a network card, which locks it. Below the first number they refuse; below the
# second a large model may not fit.
_LOCKING = ("verbs", "efa")
_LEAST_LOCKED = 32 << 20
_ENOUGH_LOCKED = 1 << 30
_CAP_IPC_LOCK = 14


def check_installation(
    environment: Environment, workers: bool, services: bool, alone: bool, local: bool = False
) -> Iterator[Finding]:
    """One finding per part that the processes on this host need: workers, and services (servers or the coordinator).

    A worker `alone` needs no plugins; `local`: without servers, the workers of one host reduce among themselves.
    """
    versions: dict[str, str] = {}
    path = None
    try:
        path = installation.library(environment)
        versions["library"] = installation.library_version(path)
        yield ok("library", f"{path}, {versions['library']}")
    except (LaunchError, OSError) as error:
        yield fail("library", str(error))
    if services:
        yield from _check_server(environment, versions)
    if workers:
        yield from _check_package(versions)
        yield _check_torch()
    if not alone:
        yield from _check_transport(environment, local, path)
    if workers and not alone:
        yield _check_plugin(environment, "scheduler", _scheduler(environment, path), path)
    if len(set(versions.values())) > 1:
        found = ", ".join(f"{part} {version}" for part, version in versions.items())
        yield fail("versions", f"they differ: {found}. Install one release of byteps everywhere")


def _scheduler(environment: Environment, beside: pathlib.Path | None) -> str:
    """The name of the scheduler that the library at `beside` would take."""
    wanted = environment.text("BYTEPS_SCHEDULER") or "auto"
    if wanted.lower() != "auto":
        return wanted
    for name in _SCHEDULERS:
        with contextlib.suppress(LaunchError):
            installation.plugin(environment, "scheduler", name, beside)
            return name
    return _SCHEDULERS[0]


def _check_server(environment: Environment, versions: dict[str, str]) -> Iterator[Finding]:
    try:
        binary = installation.server_binary(environment)
    except LaunchError as error:
        yield fail("server", str(error))
        return
    version = installation.server_version(binary)
    if version is None:
        yield fail("server", f"{binary} --version tells no version: not a byteps_server, or it cannot run here")
        return
    versions["server"] = version
    yield ok("server", f"{binary}, {version}")


def _check_package(versions: dict[str, str]) -> Iterator[Finding]:
    try:
        versions["package"] = importlib.metadata.version("byteps")
        yield ok("package", f"byteps {versions['package']} for {sys.executable}")
    except importlib.metadata.PackageNotFoundError:
        yield note("package", f"byteps is not installed for {sys.executable}: `import byteps` will not work there")


def _check_torch() -> Finding:
    try:
        return ok("torch", f"{importlib.metadata.version('torch')} for {sys.executable}")
    except importlib.metadata.PackageNotFoundError:
        return note("torch", f"not installed for {sys.executable}; needed only by byteps.torch")


def _check_plugin(environment: Environment, kind: str, name: str, beside: pathlib.Path | None) -> Finding:
    try:
        path = installation.plugin(environment, kind, name, beside)
        installation.load_plugin(path, kind)
    except (LaunchError, OSError) as error:
        return fail(kind, str(error))
    return ok(kind, f"{name}: {path}")


def _check_transport(environment: Environment, local: bool, beside: pathlib.Path | None) -> Iterator[Finding]:
    transport = environment.text("BYTEPS_TRANSPORT")
    original = environment.text("DMLC_ENABLE_RDMA")
    if local:
        transport = _LOCAL_TRANSPORT
    elif transport is None and original is not None:
        transport = _ORIGINAL.get(original.lower())
        if transport is None:
            yield fail(
                "transport",
                f"DMLC_ENABLE_RDMA={original}: there is no such transport here: take BYTEPS_TRANSPORT=verbs, efa, tcp "
                "or auto",
            )
            return
    if transport is None or transport.lower() == _DEFAULT_TRANSPORT:
        transport = _FALLBACK_TRANSPORT
    yield _check_plugin(environment, "transport", transport, beside)
    yield _check_memlock(transport.lower())


def _may_lock_without_limit() -> bool:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)
    return False


def locked_memory() -> str:
    """How much memory this process may lock, for people."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return "unlimited" if limit == resource.RLIM_INFINITY or _may_lock_without_limit() else f"{limit >> 10} KiB"


def _check_memlock(transport: str) -> Finding:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    unlimited = limit == resource.RLIM_INFINITY or _may_lock_without_limit()
    text = locked_memory()
    if transport not in _LOCKING:
        return ok("memlock", f"{text}; {transport} locks no memory")
    if unlimited or limit >= _ENOUGH_LOCKED:
        return ok("memlock", text)
    remedy = "`ulimit -l unlimited` (in /etc/security/limits.conf: memlock), for a container --ulimit memlock=-1"
    if limit < _LEAST_LOCKED:
        return fail("memlock", f"{text} is too little for {transport}: {remedy}")
    return note("memlock", f"{text} may be too little for {transport} and a large model: {remedy}")
