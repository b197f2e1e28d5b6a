"""Refuses sub-interpreters, before the native module is loaded: pybind11 would take the lock of the main interpreter
there, and wait for ever."""

import importlib
import importlib.util

for _name in ("_interpreters", "_xxsubinterpreters"):  # from Python 3.13 on, and before
    if importlib.util.find_spec(_name) is None:
        continue
    _interpreters = importlib.import_module(_name)
    if _interpreters.get_current() != _interpreters.get_main():
        raise ImportError(
            "byteps cannot be used in a sub-interpreter: import it in the main one, or in a process of its own"
        )
    break
