"""Runs functions of a test file in a process of its own; jobs.py starts it, through bpslaunch or plainly.

run_body.py FILE FUNCTION FOLDER: calls FUNCTION with the arguments pickled in FOLDER/arguments, and pickles what it
returns to FOLDER/RANK.result.

run_body.py FILE FUNCTION,FUNCTION... FOLDER: calls one after the other, each in a session of its own, and pickles which
of them failed, and how.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import sys
import traceback
from pathlib import Path
from types import ModuleType


def _run_each(module: ModuleType, names: list[str]) -> dict[str, str | None]:
    """The traceback of each function that failed; None for the others."""
    import byteps

    outcomes: dict[str, str | None] = {}
    for name in names:
        outcomes[name] = None
        try:
            getattr(module, name)()
            byteps.shutdown()
        except BaseException:
            outcomes[name] = traceback.format_exc()
            with contextlib.suppress(byteps.BytePSError):
                byteps.shutdown()
    return outcomes


def main() -> None:
    file, names, folder = Path(sys.argv[1]), sys.argv[2].split(","), Path(sys.argv[3])
    sys.path[:0] = [str(file.parent), str(Path(__file__).parent)]
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # pickles of its classes and functions find it by name
    spec.loader.exec_module(module)

    if len(names) > 1:
        result = _run_each(module, names)
    else:
        result = getattr(module, names[0])(*pickle.loads((folder / "arguments").read_bytes()))
    rank = os.environ.get("BYTEPS_LOCAL_RANK", "0")
    (folder / f"{rank}.result").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main()
