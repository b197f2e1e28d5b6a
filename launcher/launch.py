#!/usr/bin/env python3
"""`python launcher/launch.py [options] command`: bpslaunch from where this file lies, without installing anything.

The installed `bpslaunch` runs this file too: it imports nothing of the package around it, so it starts fast, and it can
say what is wrong (`bpslaunch --check`) even where the library does not load.
"""

import importlib
import os
import sys
import types

_PACKAGE = "bpslaunch"


def main() -> int:
    """Loads this folder as a package of its own and runs it."""
    folder = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120, modules that are not loaded cost no time
    # A script's own folder is first on the path: its modules would shadow others of the same name.
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != folder]
    package = types.ModuleType(_PACKAGE)
    package.__path__ = [folder]
    sys.modules[_PACKAGE] = package
    if sys.argv[1:] == ["--agent"]:  # A job over many hosts waits for the last of its agents.
        return importlib.import_module(f"{_PACKAGE}.remote.agent").serve()
    return importlib.import_module(f"{_PACKAGE}.main").main()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # While the modules were loading: nothing has been started; a traceback is no help.
        sys.exit(130)
