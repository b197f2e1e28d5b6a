"""What to install where the loader has not found a library that a program of this package is linked with."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Which Debian package has a library that byteps_server and libbyteps.so are linked with: by how its name begins.
_PACKAGES = {
    "libabsl_": "libabsl20220623",
    "libgflags": "libgflags2.2",
    "libglog": "libgoogle-glog0v6",
    "liblzma": "liblzma5",
    "libsodium": "libsodium23",
    "libunwind": "libunwind8",
}
_LOADER = re.compile(r"(\S+): error while loading shared libraries: (lib[\w.+-]+): cannot open shared object file")


def advice(lines: Iterable[str]) -> str | None:
    """A sentence, if the last words of a program are those of a loader that has not found a library."""
    for line in lines:
        found = _LOADER.search(line)
        if found is None:
            continue
        program, library = found.groups()
        package = next((package for prefix, package in _PACKAGES.items() if library.startswith(prefix)), None)
        todo = f"apt-get install {package} on Debian 12" if package else "install the package that has it"
        return f"{program} is whole; this machine lacks {library}, which it is linked with: {todo}"
    return None
