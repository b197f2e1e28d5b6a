"""Rates of links: "200mbit", and the token bucket that keeps to it."""

from __future__ import annotations

import re

# What tc's token bucket can keep to: 1 Kbit/s is the least that carries a packet within a test's patience, and beyond
# 100 Gbit/s its tokens are below a nanosecond a byte.
_LEAST, _MOST = 10**3, 100 * 10**9

_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}

# A packet of this many payload bytes is this many on the cable (Ethernet, IPv4, TCP with timestamps, MTU 1500).
PAYLOAD_SHARE = 1448 / 1514


def parse_rate(text: str) -> int:
    """Bits per second of "200mbit", "1gbit", "1.5gbit"; ValueError if it is none."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)(?:/s)?", text.strip().lower())
    if found is None or found.group(2) not in _UNITS or float(found.group(1)) <= 0:
        raise ValueError(f"{text!r} is no rate: a number and bit, kbit, mbit or gbit, such as 200mbit")
    rate = float(found.group(1)) * _UNITS[found.group(2)]
    if not _LEAST <= rate <= _MOST:
        raise ValueError(f"{text!r} is out of range: between 1kbit and 100gbit")
    return round(rate)


def bucket(rate: int, queue_seconds: float) -> str:
    """The arguments of tc for a token bucket of `rate` bits per second, with a queue of that length."""
    bytes_per_second = rate / 8
    # Large enough for timers that come a millisecond late, small enough to be no head start worth measuring.
    burst = max(80 * 1024, round(bytes_per_second / 1000))
    limit = max(128 * 1024, round(bytes_per_second * queue_seconds))
    return f"tbf rate {rate}bit burst {burst} limit {limit}"


def payload_seconds(size: int, rate: int) -> float:
    """How long `size` bytes of payload take at least."""
    return size * 8 / (rate * PAYLOAD_SHARE)
