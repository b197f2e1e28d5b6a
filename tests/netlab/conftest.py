"""Labs of network namespaces; tests that need one are skipped, with the reason, where there can be none."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]  # the packages `launcher` and `lab`

from lab import Lab, why_not


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skips where the machine or the user cannot make namespaces."""
    obstacle = why_not()
    if obstacle is not None:
        pytest.skip(obstacle)


@pytest.fixture
def lab(namespaces: None) -> Iterator[Lab]:
    """An empty lab; whatever runs in it ends with the test."""
    with Lab() as lab:
        yield lab


@pytest.fixture
def package() -> Path:
    """The installed package, which has library, server and plugins."""
    spec = importlib.util.find_spec("byteps")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("byteps is not installed")
    return Path(spec.submodule_search_locations[0])
