"""byteps.common of the original BytePS: the basics as methods of an object."""

from __future__ import annotations

from typing import Any

from byteps import basics


class BytePSBasics:
    """init, shutdown, suspend, resume, size, rank and the rest, which are functions of byteps.

    Args:
        pkg_path, args: accepted for compatibility; they said where a compiled library lay.
    """

    def __init__(self, pkg_path: Any = None, *args: Any) -> None:
        del pkg_path, args
        self.init = basics.init
        self.shutdown = basics.shutdown
        self.suspend = basics.suspend
        self.resume = basics.resume
        self.size = basics.size
        self.local_size = basics.local_size
        self.rank = basics.rank
        self.local_rank = basics.local_rank
        self.is_initialized = basics.is_initialized
        self.get_pushpull_speed = basics.get_pushpull_speed
