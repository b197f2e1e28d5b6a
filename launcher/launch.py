#!/usr/bin/env python3
"""`python launcher/launch.py [options] command`: bpslaunch from where this file lies, without installing anything.

The installed `bpslaunch` runs this file too: it imports nothing of the package around it, so it starts fast, and it can
say what is wrong (`bpslaunch --check`) even where the library does not load.
"""

import importlib.util
import pathlib
import sys

_PACKAGE = "bpslaunch"


def main() -> int:
    """Loads this folder as a package of its own and runs it."""
    folder = pathlib.Path(__file__).resolve().parent
    # A script's own folder is first on the path: its modules would shadow others of the same name.
    sys.path[:] = [entry for entry in sys.path if pathlib.Path(entry or ".").resolve() != folder]
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    package = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = package
    spec.loader.exec_module(package)
    return importlib.import_module(f"{_PACKAGE}.main").main()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # While the modules were loading: nothing has been started; a traceback is no help.
        sys.exit(130)
