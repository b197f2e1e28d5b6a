"""Standard input, output and error of this process, which who started it may have closed."""

from __future__ import annotations

import os
import sys


def open_the_closed() -> None:
    """Opens /dev/null in place of those that are closed: else the next pipe would have the number of one of them, and
    what is written there, or what a child inherits, would be that pipe."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            os.set_inheritable(number, True)
            # Python has set those that were closed to None.
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
