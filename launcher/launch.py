#!/usr/bin/env python3
"""`python launcher/launch.py [options] command`: bpslaunch from a checkout, without installing anything."""

import importlib
import pathlib
import sys


def _main() -> int:
    package = pathlib.Path(__file__).resolve().parent
    # A script's own folder is first on the path: its modules would shadow others of the same name.
    sys.path[:] = [entry for entry in sys.path if pathlib.Path(entry or ".").resolve() != package]
    sys.path.insert(0, str(package.parent))
    try:
        module = importlib.import_module(f"{package.name}.main")
    finally:
        sys.path.pop(0)
    return module.main()


if __name__ == "__main__":
    sys.exit(_main())
