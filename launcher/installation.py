"""Where the parts of BytePS are: the server's program, the library, the plugins.

In an installed package they lie beside this folder (byteps/launcher, byteps/bin, byteps/lib); in a checkout under
bazel-bin. BYTEPS_SERVER_BINARY, for development, names another server.
"""

from __future__ import annotations

import os
import pathlib
import shutil

from .environment import Environment
from .failure import EXIT_NOT_FOUND, LaunchError

_HERE = pathlib.Path(__file__).resolve().parent
_ROOT = _HERE.parent


def server_binary(environment: Environment) -> str:
    """The program that is server and coordinator; LaunchError names the places where it was sought."""
    named = environment.text("BYTEPS_SERVER_BINARY")
    if named is not None:
        found = shutil.which(named)
        if found is None:
            raise LaunchError(f"BYTEPS_SERVER_BINARY={named}: no such program", EXIT_NOT_FOUND)
        return found
    places = [_ROOT / "bin" / "byteps_server", _ROOT / "bazel-bin" / "server" / "byteps_server"]
    for place in places:
        if os.access(place, os.X_OK):
            return str(place)
    raise LaunchError(
        "the server's program byteps_server was not found; sought: "
        + ", ".join(map(str, places))
        + ". Install the package byteps, build //server:byteps_server, or set BYTEPS_SERVER_BINARY",
        EXIT_NOT_FOUND,
    )
