"""The release: `byteps.__version__` is its text, and `byteps.__version__.VERSION` its numbers.

Programs of the original BytePS import this module; others read the attribute of the package. It is both: a string.
"""

import sys

from byteps.library import LIBRARY


class _Version(str):
    """The release as text, with the names of this module."""

    __slots__ = ()

    @property
    def VERSION(self) -> tuple[int, ...]:
        """The release as numbers."""
        return tuple(int(part) for part in self.split("-")[0].split(".") if part.isdigit())

    @property
    def __version__(self) -> str:
        return str(self)


VERSION = _Version(LIBRARY.version).VERSION
__version__ = LIBRARY.version

# What Python then makes the package's attribute of this name.
sys.modules[__name__] = _Version(LIBRARY.version)  # type: ignore[assignment]
