"""How users write hosts: what a line says is honoured, or refused with its number."""

from __future__ import annotations

import os
import pathlib
import pwd
import socket

import pytest
from launching import Start

from launcher.failure import LaunchError
from launcher.remote.host_list import parse_address, parse_host, parse_hosts, read_hostfile


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


@pytest.mark.parametrize(
    "text, address",
    [
        *(("10.0.0.1", "10.0.0.1"), ("me@10.0.0.1", "10.0.0.1"), ("[fd00::1]", "fd00::1"), ("me@fd00::1", "fd00::1")),
        *(("fe80::1%eth0", "fe80::1%eth0"), ("c", None), ("me@c.example", None), ("10.0.0", None)),
    ],
)
def test_the_address_of_the_coordinator(text: str, address: str | None) -> None:
    assert parse_address("--scheduler-ip", text) == address


@pytest.mark.parametrize("text", ["c:3", "[fd00::1]:3", "10.0.0.1:3"])
def test_a_port_behind_the_host_of_the_coordinator(text: str) -> None:
    with pytest.raises(LaunchError, match="expected a host alone; its port is --port 3"):
        parse_host("--coordinator", text)


SSH = "-o ServerAliveCountMax=4 -o ForwardX11=no -o ControlMaster=no -o ClearAllForwardings=yes"


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
    "ssh_args, kept",
    [
        *(("-l me -F localforward", False), ("-L 1:b:2", True), ("-NR1:b:2", True), ("-D 1080", True)),
        *(("-o 'LocalForward 1 b:2'", True), ("-oRemoteforward=1", True), ("-o Tunnel=no", False)),
    ],
)
def test_forwardings_of_ssh(start: Start, ssh_args: str, kept: bool) -> None:
    """Those of the user's configuration are for his login; those of --ssh-args are asked for."""
    dry = start("--dry-run", "--hosts", "a,b", f"--ssh-args={ssh_args}", "--", "true")
    assert dry.wait() == 0, dry.stderr
    assert dry.stdout.count("-o ClearAllForwardings=yes") == (0 if kept else 2), dry.stdout


@pytest.mark.parametrize("option", ["--ssh-args", "--remote-bpslaunch"])
def test_words_that_a_shell_would_not_read(start: Start, option: str) -> None:
    refused = start("--dry-run", "--hosts", "a,b", option, "it's", "--", "true")
    assert refused.wait() == 2
    assert refused.stderr == f"bpslaunch: {option} it's: No closing quotation\n"


@pytest.mark.parametrize("hosts", [["a:4"], ["a:4", "--server-hosts", "b"]])
def test_servers_that_are_asked_for_and_not(start: Start, hosts: list[str]) -> None:
    words = ["--dry-run", "--hosts", *hosts, "--servers", "0", "--", "true"]
    refused = start(*words, variables={"BYTEPS_FORCE_DISTRIBUTED": "1"})
    assert refused.wait() == 2
    assert "--servers 0 contradicts BYTEPS_FORCE_DISTRIBUTED=1" in refused.stderr, refused.stderr
    assert start(*words).wait() == 0


@pytest.mark.parametrize("servers", [[], ["--server-hosts", "c"]])
def test_several_hosts_without_servers(start: Start, servers: list[str]) -> None:
    refused = start("--dry-run", "--hosts", "a,b", *servers, "--servers", "0", "--", "true")
    assert refused.wait() == 2
    assert "--servers 0: 2 worker hosts need at least one server" in refused.stderr, refused.stderr


@pytest.mark.parametrize(
    "words, by_ssh",
    [
        ([], False),
        (["--ssh-port", "22"], False),
        (["--ssh-user", pwd.getpwuid(os.getuid()).pw_name], False),
        (["--ssh-port", "2222"], True),
        (["--ssh-user", "somebody"], True),
    ],
)
@pytest.mark.parametrize("name", ["localhost", socket.gethostname()])
def test_the_own_host(start: Start, name: str, words: list[str], by_ssh: bool) -> None:
    """A user, or a port, that is not the usual one is not left out without a word."""
    dry = start("--dry-run", "--hosts", f"{name},b", *words, "--", "true")
    assert dry.wait() == 0, dry.stderr
    (line,) = [line for line in dry.stdout.splitlines() if line.startswith(f"[host {name}]")]
    assert line.startswith(f"[host {name}] ssh ") == by_ssh, line


def test_a_user_and_a_port_of_the_own_host(start: Start, tmp_path: pathlib.Path) -> None:
    (tmp_path / "hosts").write_text("localhost:2222\nb\n")
    for words in (["-WH", "hosts"], ["--hosts", "somebody@localhost,b"]):
        dry = start("--dry-run", *words, "--", "true")
        assert dry.wait() == 0 and "[host localhost] ssh " in dry.stdout, dry.stdout + dry.stderr


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
