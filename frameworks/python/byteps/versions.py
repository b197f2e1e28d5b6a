"""Whether a framework's version is one with which byteps works, for the modules of frameworks.

check_version("byteps.jax", "JAX", jax.__version__, oldest=(0, 4, 38), newest=(0, 10), why="its typed FFI")
"""

from __future__ import annotations

import re
import warnings


def _numbers(version: str) -> tuple[int, ...]:
    """Of 2.22.0rc1: (2, 22, 0); what stands behind the numbers does not count."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def check_version(
    module: str, framework: str, version: str, oldest: tuple[int, ...], newest: tuple[int, ...], why: str = ""
) -> None:
    """Refuses what is too old, and warns of what is newer than all that has been tested. A module calls it when it is
    imported.

    Args:
        module: of this package, as "byteps.jax".
        framework: as users call it.
        version: the framework's, as text.
        oldest: the first version that works.
        newest: the last one with which the tests have passed; as many numbers as count: (2, 21) is all of 2.21.
        why: what versions before `oldest` lack.

    Raises:
        ImportError: the version is older than `oldest`.

    Warns:
        RuntimeWarning: it is newer than `newest`.
    """
    numbers = _numbers(version)
    if numbers < oldest:
        first = ".".join(map(str, oldest))
        reason = f" ({why})" if why else ""
        raise ImportError(f"{module} needs {framework} {first} or newer{reason}; this is {version}")
    if numbers[: len(newest)] > newest:
        last = ".".join(map(str, newest))
        warnings.warn(
            f"{module} has been tested with {framework} up to {last}; this is {version}. It may work; where it does "
            f"not, install {framework} {last}",
            RuntimeWarning,
            stacklevel=3,
        )
