"""Runs a job on hosts with links of a known rate, all of them namespaces of this machine: see tools/lab/main.py."""

from __future__ import annotations

import sys
from pathlib import Path

# The packages `lab` and `launcher`.
sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from lab.main import main  # noqa: E402

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # Before there was anything to end.
        sys.exit(130)
