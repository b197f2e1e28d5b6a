"""Finds and loads libbyteps.so, once per process."""

import os
from pathlib import Path

from byteps import _native

_VARIABLE = "BYTEPS_LIBRARY"


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
        raise ImportError(f"the BytePS library {path} ({origin}) could not be loaded: {error}. {remedy}") from error


# Without it libinfinipath, which libfabric may bring along, sets signal handlers of its own while libfabric is loaded
# (transport_plugins/libfabric/fabric_library.h).
os.environ.setdefault("IPATH_NO_BACKTRACE", "1")

LIBRARY = load()
