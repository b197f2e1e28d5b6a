"""How users write hosts: what a line says is honoured, or refused with its number."""

from __future__ import annotations

import pathlib

import pytest
from launching import Start

from launcher.failure import LaunchError
from launcher.remote.host_list import parse_host, parse_hosts, read_hostfile


@pytest.mark.parametrize(
    "line, slots",
    [
        *(("a", None), ("a:3", 3), ("a slots=4", 4), ("a cpus=4", 4), ("a cpu=2", 2)),
        *(("a slots=2 max_slots=4", 2), ("a max-slots=4 slots=4", 4), ("a:2 slots-max=2", 2)),
    ],
)
def test_slots_of_a_hostfile(tmp_path: pathlib.Path, line: str, slots: int | None) -> None:
    (tmp_path / "hosts").write_text(f"# ours\nb\n{line}\n")
    assert [host.slots for host in read_hostfile("--hostfile", str(tmp_path / "hosts"))] == [None, slots]


def test_a_hostfile_of_an_editor_that_marks_unicode(tmp_path: pathlib.Path) -> None:
    """Such editors end lines by "\\r\\n", too."""
    (tmp_path / "hosts").write_bytes(b"\xef\xbb\xbfa slots=2\r\nb\r\n")
    assert [host.name for host in read_hostfile("--hostfile", str(tmp_path / "hosts"))] == ["a", "b"]


@pytest.mark.parametrize(
    "line, said",
    [
        ("a slots=4 max_slots=2", "max_slots=2: slots=4 are more"),
        ("a max_slots=2", "max_slots=2: no slots=N beside it"),
        ("a:2 slots=3", "'slots=3': this is there already"),
        ("a rack=7", "'rack=7': expected slots=N"),
    ],
)
def test_what_a_hostfile_cannot_say(tmp_path: pathlib.Path, line: str, said: str) -> None:
    (tmp_path / "hosts").write_text(f"b\n{line}\n")
    with pytest.raises(LaunchError) as error:
        read_hostfile("--hostfile", str(tmp_path / "hosts"))
    assert str(error.value) == f"--hostfile {tmp_path / 'hosts'}, line 2: {said}"


def test_an_address_without_brackets() -> None:
    with pytest.raises(LaunchError, match=r"--hosts: 'fd00::1:4': an IPv6 address stands in brackets: \[fd00::1\]:N"):
        parse_hosts("--hosts", "a,fd00::1:4")


@pytest.mark.parametrize("text, machine", [("c", "c"), ("me@fd00::1", "fd00::1"), ("[fd00::1]", "fd00::1")])
def test_the_host_of_the_coordinator(text: str, machine: str) -> None:
    assert parse_host("--coordinator", text).machine == machine


@pytest.mark.parametrize("text", ["c:3", "[fd00::1]:3", "10.0.0.1:3"])
def test_a_port_behind_the_host_of_the_coordinator(text: str) -> None:
    with pytest.raises(LaunchError, match="expected a host alone; its port is --port 3"):
        parse_host("--coordinator", text)


SSH = "-o ServerAliveInterval=1 -o ServerAliveCountMax=4 -o ForwardX11=no"


@pytest.mark.parametrize(
    "words, reached",
    [
        (["--coordinator", "me@b"], {"a": "a", "b": "me@b"}),
        (["--server-hosts", "me@b"], {"a": "a", "b": "me@b"}),
        (["--scheduler-ssh-port", "2222"], {"a": "-p 2222 a", "b": "b"}),
        (["--scheduler-ip", "b", "--scheduler-ssh-port", "2222"], {"a": "a", "b": "-p 2222 b"}),
        (["--scheduler-ip", "me@b", "--scheduler-ssh-port", "2222"], {"a": "a", "b": "-p 2222 me@b"}),
    ],
)
def test_a_host_of_several_roles(start: Start, words: list[str], reached: dict[str, str]) -> None:
    """What one of them says about ssh counts for the host."""
    dry = start("--dry-run", "--hosts", "a,b", *words, "--", "true")
    assert dry.wait() == 0, dry.stderr
    for host, way in reached.items():
        (line,) = [line for line in dry.stdout.splitlines() if line.startswith(f"[host {host}]")]
        assert f"{SSH} {way} 'exec " in line, line


@pytest.mark.parametrize(
    "words, said",
    [
        (["--hosts", "you@a,b", "--coordinator", "me@a"], "host a: user me and you: it is reached by one"),
        (["-WH", "hosts", "--scheduler-ssh-port", "2222"], "host a: ssh port 22 and 2222: it is reached by one"),
        (["--hosts", "a", "--scheduler-ssh-port", "22"], "one worker for itself has no coordinator"),
    ],
)
def test_what_does_not_agree_about_a_host(start: Start, tmp_path: pathlib.Path, words: list[str], said: str) -> None:
    (tmp_path / "hosts").write_text("a:22\nb\n")
    refused = start("--dry-run", *words, "--", "true")
    assert refused.wait() == 2
    assert said in refused.stderr, refused.stderr
