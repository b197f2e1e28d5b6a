"""Which node a worker runs on: the strategies of placement groups, on nodes that are hosts of their own."""

from __future__ import annotations

import pathlib

import pytest

pytest.importorskip("ray", reason="ray is not installed")

from ray_hosts import RayHosts

_DRIVER = str(pathlib.Path(__file__).with_name("ray_placement.py"))


def test_placement(tmp_path: pathlib.Path) -> None:
    with RayHosts(tmp_path, 2) as cluster:
        log = tmp_path / "driver.log"
        driver = cluster.start_driver(log, _DRIVER, cluster.address)
        status = driver.wait(300)
        assert status == 0 and "ALL WELL" in log.read_text(), log.read_text()
