"""The command of a worker, and what is put in front of it."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Sequence

from .environment import Environment
from .failure import EXIT_NOT_FOUND, LaunchError

_HERE = pathlib.Path(__file__).resolve().parent
_DEBUGGER = ["gdb", "-q", "-batch", "-x", f"{_HERE}/ignore_sigterm.gdb", "-x", f"{_HERE}/backtrace.gdb", "--args"]


def worker_command(words: Sequence[str], environment: Environment) -> list[str]:
    """The argument list to run for `words`; LaunchError if there is no such program.

    Words are passed on as they are, without a shell. One single word with blanks in it is a shell's line:
    `bpslaunch "python train.py --lr 0.1"`.
    """
    if not words:
        raise LaunchError("no command to run; usage: bpslaunch [options] command [argument ...]")
    command = shell_words(words)
    if _found(command[0], environment) is None:
        raise LaunchError(f"no such program: {command[0]}", EXIT_NOT_FOUND)
    return in_debugger(command, environment)


def _found(program: str, environment: Environment) -> str | None:
    """Where the worker's PATH has it: over ssh that came along, and is another one than ours."""
    return shutil.which(program, path=environment.variables().get("PATH"))


def shell_words(words: Sequence[str]) -> list[str]:
    """The argument list itself, whether or not there is such a program here."""
    if len(words) == 1 and len(words[0].split()) > 1 and not pathlib.Path(words[0]).is_file():
        return ["/bin/sh", "-c", words[0]]
    return list(words)


def in_debugger(command: list[str], environment: Environment) -> list[str]:
    """With BYTEPS_ENABLE_GDB=1: run under gdb, which prints a backtrace if the program crashes."""
    if environment.flag("BYTEPS_ENABLE_GDB") and _found("gdb", environment) is None:
        raise LaunchError("BYTEPS_ENABLE_GDB is set, but gdb is not installed", EXIT_NOT_FOUND)
    return debugged(command, environment)


def debugged(command: list[str], environment: Environment) -> list[str]:
    """As in_debugger(), for a host that is not looked at."""
    return [*_DEBUGGER, *command] if environment.flag("BYTEPS_ENABLE_GDB") else command


def is_debugged(command: Sequence[str]) -> bool:
    """Whether in_debugger() has put the debugger in front of this command."""
    return list(command[: len(_DEBUGGER)]) == _DEBUGGER
