"""bps_info and bps_perf as the wheel installs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_FOREIGN = ("BYTEPS_", "DMLC_")


def run(tmp_path: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / name
    if not program.exists():
        pytest.skip(f"byteps is not installed for {sys.executable}")
    variables = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
    return subprocess.run(
        [str(program), *words], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path, env=variables
    )


def test_bps_info_finds_what_lies_beside_it(tmp_path: Path) -> None:
    done = run(tmp_path, "bps_info", "--check", "--timeout", "120")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/byteps/lib/libbyteps.so: release " in done.stdout
    assert "/byteps/bin/byteps_server" in done.stdout
    for plugin in ("transport tcp", "transport shm", "transport verbs", "transport efa", "scheduler credit"):
        file = f"libbyteps_{plugin.replace(' ', '_')}.so"
        assert re.search(rf"^  {plugin} \d+\.\d+  /.+/byteps/lib/byteps/plugins/{file}$", done.stdout, re.M)
    assert "/.." not in done.stdout
    for transport in ("tcp", "shm", "local"):
        assert f"\n  {transport:<8}ok " in done.stdout


def test_bps_info_speaks_json(tmp_path: Path) -> None:
    done = run(tmp_path, "bps_info", "--json", "--check", "--timeout", "120")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["usable"] is True
    assert said["library"].endswith("/byteps/lib/libbyteps.so")
    assert {"tcp", "shm"} <= {plugin["name"] for plugin in said["plugins"] if plugin["usable"]}
    results = {each["name"]: each for each in said["check"]}
    assert {name for name, each in results.items() if each["result"] == "ok"} >= {"tcp", "shm", "local"}
    assert results["tcp"]["small_us"] > 0
    variables = {each["name"]: each for each in said["configuration"]}
    assert variables["BYTEPS_SHM"] == {"name": "BYTEPS_SHM", "value": "1", "source": "default", "acted_on": True}


def test_bps_info_knows_the_models(tmp_path: Path) -> None:
    done = run(tmp_path, "bps_info", "--placement", "vgg16")
    assert done.returncode == 0, done.stderr
    assert "VGG-16" in done.stdout


def test_bps_perf_measures(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run(tmp_path, "bps_perf", "--sizes", "4", "--rounds", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bytes"] == 4
    assert run(tmp_path, "bps_perf", "--help").stdout.count("vgg16") > 1
