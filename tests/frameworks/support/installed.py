"""A framework for a test file, which is skipped where that is not installed::

from installed import framework

tf = framework("tensorflow")

import byteps.tensorflow as bps
"""

from __future__ import annotations

import os
from typing import Any

import pytest

# TensorFlow writes what it does about processors to stderr otherwise.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def framework(name: str) -> Any:
    """The module."""
    return pytest.importorskip(name, reason=f"{name} is not installed here: tools/setup --frameworks")
