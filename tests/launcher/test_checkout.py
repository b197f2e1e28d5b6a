"""bpslaunch from a checkout, where nothing is installed."""

from __future__ import annotations

import pathlib

import pytest

from launcher import installation


def test_plugins_lie_where_bazel_has_built_them(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_ROOT", tmp_path)
    assert installation.with_plugins_of_checkout({"A": "b"}) == {"A": "b"}, "nothing is built"
    folders = [tmp_path / "bazel-bin" / folder for folder in ("scheduler_plugins/fifo", "transport_plugins/libfabric")]
    for folder, name in zip(folders, ("scheduler_fifo", "transport_tcp")):
        folder.mkdir(parents=True)
        (folder / f"libbyteps_{name}.so").touch()
    found = installation.with_plugins_of_checkout({"A": "b", "BYTEPS_PLUGIN_PATH": ""})
    assert found == {"A": "b", "BYTEPS_PLUGIN_PATH": ":".join(map(str, folders))}
    for name in ("BYTEPS_PLUGIN_PATH", "BYTEPS_LIBRARY", "BYTEPS_SERVER_BINARY"):
        assert installation.with_plugins_of_checkout({name: "/x"}) == {name: "/x"}, "somebody has named the parts"
