"""Finds and loads libbyteps.so, once per process."""

import os
import re
from pathlib import Path

from byteps import _native

_VARIABLE = "BYTEPS_LIBRARY"


# Which Debian package has a library that libbyteps.so is linked with: by how its name begins.
_PACKAGES = {"libabsl_": "libabsl20220623", "libsodium": "libsodium23"}


def missing_library(error: str) -> str:
    """What to do where the loader has not found what a library is linked with; "" if `error` says nothing of that."""
    found = re.search(r"(lib[\w.+-]+): cannot open shared object file", error)
    if found is None:
        return ""
    name = found[1]
    package = next((package for prefix, package in _PACKAGES.items() if name.startswith(prefix)), None)
    if package is None:
        return f"Install the package of this distribution that has {name}."
    return f"Install the package that has {name} (Debian 12: apt-get install {package})."


def find() -> tuple[Path, str]:
    """Where the library is, and who says so."""
    named = os.environ.get(_VARIABLE)
    if named:
        return Path(named), f"from {_VARIABLE}"
    return Path(__file__).parent / "lib" / "libbyteps.so", "beside the package byteps"


def load() -> _native.Library:
    """Loads the library.

    Raises:
        ImportError: it is not there, cannot be loaded, or speaks another version of the ABI.
    """
    path, origin = find()
    remedy = f"Install byteps again, or set {_VARIABLE} to the libbyteps.so to use."
    if not path.exists():
        raise ImportError(f"the BytePS library {path} ({origin}) does not exist. {remedy}")
    try:
        return _native.load(str(path))
    except RuntimeError as error:
        remedy = missing_library(str(error)) or remedy
        raise ImportError(f"the BytePS library {path} ({origin}) could not be loaded: {error}. {remedy}") from error


# Without it libinfinipath, which libfabric may bring along, sets signal handlers of its own while libfabric is loaded
# (transport_plugins/libfabric/fabric_library.h).
os.environ.setdefault("IPATH_NO_BACKTRACE", "1")

LIBRARY = load()
