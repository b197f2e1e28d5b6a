"""What an agent and a launch load before they begin: a job over many hosts waits for the last of them.

Seconds would say as much about the machine as about us, so modules are counted.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from launching import BPSLAUNCH

# What takes long to load, and who may do without.
_HEAVY = ("importlib.metadata", "importlib.util", "hashlib", "random", "tempfile", "asyncio", "multiprocessing")
_OF_A_LAUNCH = ("argparse", "bpslaunch.arguments", "bpslaunch.main", "bpslaunch.check", "bpslaunch.job")


def loaded(*words: str, stdin: str = "") -> list[str]:
    """The modules that bpslaunch has loaded at its end, in their order."""
    command = [sys.executable, "-X", "importtime", *BPSLAUNCH[1:], *words]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=100, check=False)
    return re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE)


@pytest.fixture(scope="module")
def bare() -> set[str]:
    """What this interpreter loads for nothing; its site-packages may ask for more than the standard library does."""
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", ""], capture_output=True, text=True, check=True)
    return set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))


def test_an_agent_loads_what_it_needs(bare: set[str]) -> None:
    modules = [module for module in loaded("--agent") if module not in bare]
    assert "bpslaunch.outbox" in modules
    unwanted = {*_HEAVY, *_OF_A_LAUNCH, "bpslaunch.remote.host_job", "bpslaunch.environments.place"}
    assert not unwanted.intersection(modules), modules
    # 134 with Python 3.11; newer ones have more and smaller modules.
    assert len(modules) < 170, modules


def test_a_launch_over_hosts_loads_what_it_needs(bare: set[str]) -> None:
    modules = [module for module in loaded("--dry-run", "--hosts", "a,b", "--", "true") if module not in bare]
    assert "bpslaunch.remote.host_job" in modules
    unwanted = {*_HEAVY, "bpslaunch.check", "bpslaunch.remote.agent", "bpslaunch.environments.torchrun"}
    assert not unwanted.intersection(modules), modules
