"""The names by which other hosts may know a file of this one.

Where /home is a link to another disk here alone, the system's own name of the current folder (/data/home/me) is unknown
elsewhere. A shell keeps the name before the link in PWD, and HOME has it, too. Where another link was followed, which
is here alone, only the system's name is known: so both are tried, in this order.
"""

from __future__ import annotations

import os


def shared_names(path: str) -> list[str]:
    """One or two names of `path`, absolute: that below PWD or HOME, if these lead to a folder above it; its own."""
    for variable in ("PWD", "HOME"):
        name = os.environ.get(variable, "")
        if not name.startswith("/"):
            continue
        folder = os.path.realpath(name)
        if folder not in ("/", os.path.normpath(name)) and (path == folder or path.startswith(folder + "/")):
            return [os.path.normpath(name) + path[len(folder) :], path]
    return [path]
