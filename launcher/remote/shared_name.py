"""The name by which other hosts know a file of this one.

Where /home is a link to another disk here alone, the system's own name of the current folder (/data/home/me) is unknown
elsewhere. A shell keeps the name before the link in PWD, and HOME has it, too.
"""

from __future__ import annotations

import os


def shared_name(path: str) -> str:
    """`path`, absolute, below the folder of PWD or HOME where it is below what these lead to; else as it is."""
    for variable in ("PWD", "HOME"):
        name = os.environ.get(variable, "")
        if not os.path.isabs(name):
            continue
        folder = os.path.realpath(name)
        if folder != "/" and (path == folder or path.startswith(folder + "/")):
            return os.path.normpath(name) + path[len(folder) :]
    return path
