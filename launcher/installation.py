"""Where the parts of BytePS are: the server's program, the library, the plugins; and which versions they have.

In an installed package they lie beside this folder (byteps/launcher, byteps/bin, byteps/lib); in a checkout under
bazel-bin. BYTEPS_SERVER_BINARY and BYTEPS_LIBRARY, for development, name others.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping

from .environment import Environment
from .failure import EXIT_NOT_FOUND, LaunchError

_ROOT = pathlib.Path(__file__).resolve().parent.parent
# Where this folder is share/byteps/launcher of an installed folder.
_PREFIX = _ROOT.parent.parent
_VERSION_SECONDS = 60


def server_binary(environment: Environment) -> str:
    """The program that is server and coordinator; LaunchError names the places where it was sought."""
    named = environment.text("BYTEPS_SERVER_BINARY")
    if named is not None:
        found = shutil.which(named)
        if found is None:
            raise LaunchError(f"BYTEPS_SERVER_BINARY={named}: no such program", EXIT_NOT_FOUND)
        return found
    places = [
        _ROOT / "bin" / "byteps_server",
        _PREFIX / "bin" / "byteps_server",
        _ROOT / "bazel-bin" / "server" / "byteps_server",
    ]
    for place in places:
        if os.access(place, os.X_OK):
            return str(place)
    raise LaunchError(
        f"the server's program byteps_server was not found; sought: {_list(places)}. Install the package byteps, "
        "build //server:byteps_server, or set BYTEPS_SERVER_BINARY",
        EXIT_NOT_FOUND,
    )


def library(environment: Environment) -> pathlib.Path:
    """libbyteps.so; LaunchError names the places where it was sought."""
    named = environment.text("BYTEPS_LIBRARY")
    places = [
        _ROOT / "lib" / "libbyteps.so",
        _PREFIX / "lib" / "libbyteps.so",
        _ROOT / "bazel-bin" / "core" / "libbyteps.so",
    ]
    if named is not None:
        places = [pathlib.Path(named)]
    for place in places:
        if place.is_file():
            return place
    raise LaunchError(
        f"libbyteps.so was not found; sought: {_list(places)}. Install the package byteps, or set BYTEPS_LIBRARY",
        EXIT_NOT_FOUND,
    )


def plugin(environment: Environment, kind: str, name: str, beside: pathlib.Path | None) -> pathlib.Path:
    """The file of a plugin of `kind` ("transport", "scheduler"), found as the library does that lies at `beside`."""
    if "/" in name:
        places = [pathlib.Path(name)]
    else:
        search = (environment.text("BYTEPS_PLUGIN_PATH") or "").split(":")
        folders = [pathlib.Path(folder) for folder in search if folder]
        if beside is not None:
            folders.append(beside.parent / "byteps" / "plugins")
        places = [folder / f"libbyteps_{kind}_{name}.so" for folder in folders]
    for place in places:
        if place.is_file():
            return place
    raise LaunchError(
        f"BYTEPS_{kind.upper()}={name}: no such plugin; sought: {_list(places) or 'nowhere'}. Correct the name, "
        "or add the plugin's folder to BYTEPS_PLUGIN_PATH",
        EXIT_NOT_FOUND,
    )


def with_plugins_of_checkout(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables, with BYTEPS_PLUGIN_PATH where nothing is installed and nothing is named.

    In a checkout library and server have no plugins beside them: they lie where Bazel has built them.
    """
    named = ("BYTEPS_PLUGIN_PATH", "BYTEPS_LIBRARY", "BYTEPS_SERVER_BINARY")
    built = _ROOT / "bazel-bin"
    if any(variables.get(name, "").strip() for name in named) or not built.is_dir():
        return dict(variables)
    files = [
        file for kind in ("transport", "scheduler") for file in built.glob(f"{kind}_plugins/*/libbyteps_{kind}_*.so")
    ]
    folders = sorted({str(file.parent) for file in files})
    return {**variables, "BYTEPS_PLUGIN_PATH": ":".join(folders)} if folders else dict(variables)


def server_version(binary: str) -> str | None:
    """The release that the program reports; None if it reports none."""
    try:
        done = subprocess.run(
            [binary, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_VERSION_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(rb"\b(\d+\.\d+\.\d+\S*)", done.stdout)
    return found.group(1).decode() if found else None


def library_version(path: pathlib.Path) -> str:
    """The release of libbyteps.so; OSError if it does not load or is something else."""
    release = _loaded(path, "bps_version_string", tell_result=True)
    if release is None:
        raise OSError(f"{path}: not libbyteps.so: it has no bps_version_string")
    return release


@functools.cache
def installed_release() -> str:
    """The release of the installed package, or of the library that was built in this checkout, or "unknown"."""
    # As importlib.metadata finds it, which takes longer to load than all of bpslaunch.
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder or "."):  # noqa: PTH208, a folder of packages has thousands of names
                if name.startswith("byteps-") and name.endswith(".dist-info"):
                    return name[len("byteps-") : -len(".dist-info")]
    try:
        return library_version(library(Environment(os.environ)))
    except (LaunchError, OSError):
        return "of unknown release: neither installed nor built"


def load_plugin(path: pathlib.Path, kind: str) -> None:
    """Loads a plugin as far as the dynamic loader goes; OSError says what is missing."""
    entry = f"bps_{kind}_plugin_v1"
    if _loaded(path, entry) is None:
        raise OSError(f"{path}: not a {kind} plugin: it has no {entry}")


# A file that was cut off ends the process that loads it: a program of its own, with the path, the function's name, and
# whether to call the function, which then answers with a text.
_LOAD = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
if not hasattr(library, sys.argv[2]): sys.exit(3)
function = getattr(library, sys.argv[2])
function.restype = ctypes.c_char_p
print(function().decode() if sys.argv[3] == "True" else "")
"""


def _loaded(path: pathlib.Path, function: str, tell_result: bool = False) -> str | None:
    """What the function of the shared object says, if it is to be called; None: there is none. OSError: why not."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _LOAD, str(path), function, str(tell_result)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{path}: it could not be loaded within {_VERSION_SECONDS} s") from None
    if done.returncode == 3:
        return None
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise OSError(f"{path}: {name} while it was loaded: the file is damaged or cut off. Copy it anew")
    if done.returncode != 0:
        error = (done.stderr.strip().splitlines() or ["it cannot be loaded"])[-1].removeprefix("OSError: ")
        raise OSError(error if str(path) in error else f"{path}: {error}")
    return done.stdout.strip()


def _list(places: list[pathlib.Path]) -> str:
    return ", ".join(map(str, places))
