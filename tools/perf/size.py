"""Sizes of tensors, as people say them.

parse_sizes("4,64K,100M")       # [4, 65536, 100000000]
"""

from __future__ import annotations

import argparse

_UNITS = {"": 1, "K": 1 << 10, "M": 10**6, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "G": 10**9}


def parse_size(text: str) -> int:
    """Bytes of "4", "64K", "64Ki", "100M" (K is 1024, M and G are powers of ten, as the sizes of tensors are said)."""
    digits = text.rstrip("KMGBikmgb")
    unit = text[len(digits) :].upper().removesuffix("B")
    if not digits.isdigit() or unit not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 4, 64K or 100M")
    return int(digits) * _UNITS[unit]


def parse_sizes(text: str) -> list[int]:
    """A comma-separated list of sizes."""
    return [parse_size(size) for size in text.split(",")]
