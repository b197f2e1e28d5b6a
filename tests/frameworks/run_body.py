"""Runs one function of a test file in a process of its own; jobs.py starts it, through bpslaunch or plainly.

run_body.py FILE FUNCTION FOLDER: calls FUNCTION with the arguments pickled in FOLDER/arguments, and pickles what it
returns to FOLDER/RANK.result.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from pathlib import Path


def main() -> None:
    file, name, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    sys.path[:0] = [str(file.parent), str(Path(__file__).parent)]
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # pickles of its classes and functions find it by name
    spec.loader.exec_module(module)

    arguments = pickle.loads((folder / "arguments").read_bytes())
    result = getattr(module, name)(*arguments)
    rank = os.environ.get("BYTEPS_LOCAL_RANK", "0")
    (folder / f"{rank}.result").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main()
