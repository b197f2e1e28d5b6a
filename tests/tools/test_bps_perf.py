"""bps_perf: real jobs, and the calls that it refuses."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from launching import OWN_NETWORK, need_own_network
from perf_program import PROGRAM, run, start


@pytest.fixture(scope="module")
def real() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("byteps")


def rows_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_figures(row: dict[str, Any]) -> None:
    assert 0 < row["min_us"] <= row["p50_us"] <= row["p90_us"] <= row["p99_us"] <= row["max_us"]
    assert row["min_us"] <= row["mean_us"] <= row["max_us"]
    assert row["algbw_gb_s"] == pytest.approx(row["bytes"] * row["tensors"] / row["time_us"] / 1e3)
    assert row["workers_cpu_s_per_gb"] > 0


@pytest.mark.usefixtures("real")
def test_a_table_next_to_both_peers() -> None:
    done = run("--transport", "tcp", "--sizes", "4,300K", "--rounds", "3", "--against", "gloo,raw")
    assert done.returncode == 0, done.stderr
    title, header, *rows = done.stdout.splitlines()
    assert title.startswith("latency: 2 workers, 1 servers, transport tcp, scheduler credit; float32, sum, in place;")
    assert header.split()[:2] == ["bytes", "time"]
    assert header.count("ratio") == 2 and "gloo us" in header and "raw us" in header
    assert [row.split()[0] for row in rows] == ["4", "307200"]
    for row in rows:
        words = row.split()
        assert float(words[7]) == pytest.approx(float(words[1]) / float(words[6]), rel=0.1, abs=0.02)


@pytest.mark.usefixtures("real")
def test_shared_memory_with_a_server() -> None:
    words = ("--sizes", "4,1M", "--rounds", "4", "--json", "--against", "raw", "--tensors", "3")
    rows = rows_of(run(*words, variables={"BYTEPS_FORCE_DISTRIBUTED": "1"}))
    assert [row["bytes"] for row in rows] == [4, 1_000_000]
    for row in rows:
        check_figures(row)
        assert (row["transport"], row["servers"], row["tensors"], row["mode"]) == ("shm", 1, 3, "latency")
        assert row["servers_cpu_s_per_gb"] > 0
        assert row["raw_ratio"] == pytest.approx(row["time_us"] / row["raw_us"])


@pytest.mark.usefixtures("real")
def test_a_server_that_has_nothing_to_sum() -> None:
    (row,) = rows_of(run("--servers", "1", "--sizes", "1M", "--rounds", "4", "--json"))
    assert (row["transport"], row["servers"], row["workers"]) == ("local", 0, 2)


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize(
    ("words", "variables", "transport", "servers"),
    [
        # What is asked for is measured, whatever the environment says.
        (["--transport", "local"], {"BYTEPS_SHM": "0", "BYTEPS_FORCE_DISTRIBUTED": "1"}, "local", 0),
        (["--transport", "local"], {"BYTEPS_LOCAL_REDUCE": "0"}, "local", 0),
        (["--transport", "Local"], {}, "local", 0),
        (["--transport", "Auto", "--servers", "0"], {}, "local", 0),
        (["--transport", "tcp"], {}, "tcp", 1),
        (["--transport", "TCP", "--scheduler", "FIFO"], {}, "tcp", 1),
        # The hosts' network is tcp, and shared memory carries within this one.
        (["--transport", "tcp"], {"BYTEPS_SHM": "1"}, "shm", 1),
    ],
)
def test_the_transport_that_is_asked_for(
    words: list[str], variables: dict[str, str], transport: str, servers: int
) -> None:
    (row,) = rows_of(run(*words, "--sizes", "4", "--rounds", "4", "--json", variables=variables))
    assert (row["transport"], row["servers"]) == (transport, servers)


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_peers_on_a_host_without_ipv4(workers: str) -> None:
    only_ipv6 = "ip link set lo up && ip addr del 127.0.0.1/8 dev lo"
    need_own_network(f"{only_ipv6} && ip -6 route get ::1", programs=["ip"])
    host = [*OWN_NETWORK, "sh", "-ec", f'{only_ipv6} && exec "$@"', "sh"]
    done = run("--workers", workers, "--sizes", "4", "--rounds", "3", "--json", "--against", "gloo,raw", within=host)
    (row,) = rows_of(done)
    assert row["gloo_us"] > 0 and row["raw_us"] > 0


@pytest.mark.usefixtures("real")
def test_workers_among_themselves_in_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures are drawn by matplotlib, which is not installed here")
    picture = tmp_path / "out.png"
    words = ("--transport", "local", "--workers", "3", "--sizes", "4,300K", "--rounds", "3", "--dtype", "bfloat16")
    rows = rows_of(run(*words, "--op", "max", "--out-of-place", "--json", "--plot", str(picture)))
    for row in rows:
        check_figures(row)
        assert (row["transport"], row["workers"], row["servers"]) == ("local", 3, 0)
        assert (row["dtype"], row["op"], row["place"]) == ("bfloat16", "max", "out")
        assert row["servers_cpu_s_per_gb"] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("real")
def test_bandwidth_as_csv() -> None:
    words = ("--mode", "bandwidth", "--sizes", "64K,300K", "--rounds", "4", "--csv", "--against", "gloo,raw")
    done = run(*words, "--scheduler", "fifo", "--transport", "tcp")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["bytes"] for row in rows] == ["65536", "307200"]
    for row in rows:
        assert (row["mode"], row["op"], row["tensors"], row["scheduler"]) == ("bandwidth", "average", "4", "fifo")
        assert float(row["gloo_us"]) > 0 and float(row["raw_us"]) > 0
        # With four under way all the time, an operation takes longer than its share of the time.
        assert float(row["mean_us"]) * 4 > float(row["time_us"])


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("mode", ["latency", "bandwidth"])
def test_buffers_that_are_used_again(mode: str) -> None:
    words = ("--transport", "local", "--sizes", "300K", "--rounds", "3", "--buffers", "--out-of-place", "--json")
    (row,) = rows_of(run(*words, "--mode", mode, "--op", "sum"))
    check_figures(row)
    assert (row["place"], row["buffers"], row["op"], row["mode"]) == ("out", True, "sum", mode)
    assert row["reuse_outputs"]


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("mode", ["latency", "bandwidth"])
def test_ordinary_outputs_that_are_used_again(mode: str) -> None:
    words = ("--transport", "local", "--sizes", "300K", "--rounds", "3", "--reuse-outputs", "--out-of-place", "--json")
    (row,) = rows_of(run(*words, "--mode", mode, "--op", "sum"))
    check_figures(row)
    assert (row["place"], row["buffers"], row["reuse_outputs"]) == ("out", False, True)


def processes_with(cookie: str) -> list[str]:
    """The command lines of those whose environment holds it; without those that have ended and wait to be buried."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if cookie.encode() in (process / "environ").read_bytes().split(b"\0"):
                    found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_job(number: int) -> None:
    cookie = f"PERF_TEST={uuid.uuid4().hex}"
    words = ("--transport", "tcp", "--against", "raw", "--sizes", "4,1M", "--rounds", "1000000")
    with start(*words, variables=dict([cookie.split("=")])) as perf:
        assert perf.stdout is not None
        perf.stdout.readline()  # the title: every process is there
        assert len(processes_with(cookie)) > 6
        perf.send_signal(number)
        code = perf.wait(120)
        assert code == (-signal.SIGKILL if number == signal.SIGKILL else 128 + number)
        deadline = time.monotonic() + 120
        while (left := processes_with(cookie)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == []


@pytest.mark.usefixtures("real")
def test_a_job_that_fails_fails() -> None:
    done = run("--transport", "pigeon", "--sizes", "4")
    assert done.returncode not in (0, 2)
    assert 'transport "pigeon"' in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--op", "xor"], "invalid choice"),
        (["--dtype", "float8"], "invalid choice"),
        (["--against", "gloo,mpi"], "'mpi' is none of gloo, raw"),
        (["--sizes", "4,many"], "'many' is not a size"),
        (["--sizes", "4,0"], "--sizes: 0 bytes are no whole number of elements above 0"),
        (["--sizes", "4,13"], "--sizes: 13 bytes are no whole number of elements above 0: one of float32 has 4"),
        (
            ["--dtype", "int64", "--sizes", "4"],
            "--sizes: 4 bytes are no whole number of elements above 0: one of int64 has 8",
        ),
        (["--sizes", ""], "'' is not a size"),
        (["--sizes", "4,"], "'' is not a size"),
        (["--against", ""], "'' is none of gloo, raw"),
        (["--rounds", "0"], "0: must be at least 1"),
        (["--schedulers", "", "--model", "vgg16"], "'' is no list of names such as fifo,credit"),
        (["--workers", "0"], "0: must be at least 1"),
        (["--json", "--csv"], "not allowed with"),
        (["--transport", "local", "--servers", "1"], "--transport local is without servers"),
        (["--transport", "tcp", "--servers", "0"], "--transport tcp leads to servers"),
        (["--transport", "Local", "--servers", "1"], "--transport local is without servers"),
        (["--transport", "TCP", "--servers", "0"], "--transport tcp leads to servers"),
        (["--transport", ""], "--transport: '' is no name of a plugin"),
        (["--transport", " "], "--transport: ' ' is no name of a plugin"),
        (["--scheduler", ""], "--scheduler: '' is no name of a plugin"),
        (["--mode", "bandwidth", "--op", "sum"], "a sum would grow: take --op average, min, max, or --out-of-place"),
        (["--reuse-outputs"], "--reuse-outputs goes with --out-of-place"),
        (["--model", "vgg16", "--scheduler", "nope"], "--scheduler does not go with --model"),
        (["--model", "vgg16", "--csv"], "--csv does not go with --model"),
        (["--model", "vgg16", "--buffers"], "--buffers does not go with --model"),
        (["--model", "vgg16", "--sizes", "4"], "--sizes does not go with --model"),
        (["--model", "vgg16", "--dtype", "float16"], "--dtype does not go with --model"),
        (["--model", "vgg16", "--against", "raw"], "--against raw does not go with --model"),
        (["--schedulers", "fifo"], "--schedulers goes with --model only"),
        (["--shrink", "8"], "--shrink goes with --model only"),
        (["--compute", "1.5"], "--compute goes with --model only"),
        (["--steps", "5"], "--steps goes with --model only"),
        (["--warm-up", "5"], "--warm-up goes with --model only"),
        (["--model", "vgg61"], "there is no model 'vgg61'; known are bert-large, resnet50"),
        (["--model", "/nowhere/my.model"], "there is no model '/nowhere/my.model'"),
        (["--model", "vgg16", "--compute", "-1"], "--compute: '-1' is not a number of seconds above 0"),
        (["--model", "vgg16", "--compute", "0"], "--compute: '0' is not a number of seconds above 0"),
        (["--model", "vgg16", "--compute", "nan"], "--compute: 'nan' is not a number of seconds above 0"),
        (["--model", "vgg16", "--compute", "inf"], "--compute: 'inf' is not a number of seconds above 0"),
        (["--model", "vgg16", "--compute", "long"], "--compute: 'long' is not a number of seconds above 0"),
    ],
)
def test_wrong_calls(words: list[str], told: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert told in done.stderr


def test_inside_a_job_its_size_is_not_ours_to_choose() -> None:
    for words in (["--workers", "3"], ["--servers", "1"], ["--transport", "tcp"]):
        done = run(*words, variables={"DMLC_ROLE": "worker"})
        assert done.returncode == 2
        assert "this is a worker of one that is there" in done.stderr


def test_a_picture_needs_matplotlib() -> None:
    # -S: nothing that is installed is seen; what starts the job needs none of it.
    command = [sys.executable, "-S", str(PROGRAM), "--plot", "out.png"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "pip install matplotlib" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("out.gif", "out.gif: the name must end with one of .png, .svg, .pdf"),
        ("out", "out: the name must end with one of"),
        ("nowhere/out.png", "there is no folder "),
    ],
)
def test_a_picture_that_cannot_be_is_refused_before_anything_is_measured(tmp_path: Path, name: str, told: str) -> None:
    pytest.importorskip("matplotlib", reason="pictures are drawn by matplotlib, which is not installed here")
    done = run("--plot", str(tmp_path / name))
    assert done.returncode == 2
    assert told in done.stderr and len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.usefixtures("real")
def test_steps_of_a_model_in_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures are drawn by matplotlib, which is not installed here")
    picture = tmp_path / "steps.svg"
    words = (
        "--model",
        "resnet50",
        "--shrink",
        "64",
        "--compute",
        "0.05",
        "--steps",
        "2",
        "--schedulers",
        "fifo,credit",
    )
    done = run(*words, "--json", "--plot", str(picture))
    assert [row["by"] for row in rows_of(done)] == ["fifo", "credit"]
    assert "<svg" in picture.read_text()


@pytest.mark.usefixtures("real")
def test_a_scheduler_that_does_not_exist_is_told_before_the_first_step() -> None:
    words = ("--model", "resnet50", "--shrink", "64", "--compute", "0.05", "--steps", "2", "--schedulers", "fifo,speed")
    done = run(*words, "--json")
    assert done.returncode != 0 and done.stdout == "", done.stdout
    assert 'scheduler "speed" (from BYTEPS_SCHEDULER) could not be found' in done.stderr, done.stderr


@pytest.mark.usefixtures("real")
def test_steps_of_a_model_next_to_buckets_of_gloo() -> None:
    words = ("--model", "resnet50", "--shrink", "64", "--compute", "0.05", "--steps", "2", "--schedulers", "credit")
    ours, gloo = rows_of(run(*words, "--against", "gloo", "--json"))
    assert (ours["by"], gloo["by"]) == ("credit", "gloo")
    assert ours["bytes"] == gloo["bytes"] and len(gloo["steps_s"]) == 2
    # Of what no link is known, no bound is.
    assert "bound_s" not in ours and "bound_s" not in gloo


@pytest.mark.usefixtures("real")
def test_bounds_are_those_of_the_links_that_netlab_tells() -> None:
    """Eight MB/s, of which each byte needs two: the step cannot end before its transfer of 1.6 MB, 0.4 s."""
    variables = {"NETLAB_BYTES_PER_SECOND": "8e6", "NETLAB_OPTIMUM": "2"}
    words = ("--model", "resnet50", "--shrink", "64", "--compute", "0.05", "--steps", "1", "--schedulers", "credit")
    done = run(*words, "--against", "gloo", "--json", variables=variables)
    ours, gloo = rows_of(done)
    transfer = ours["bytes"] / 8e6
    assert 2 * transfer < ours["bound_s"] < 2 * transfer + 0.05
    # A ring of two workers carries every byte once, whatever the shares of servers are.
    assert transfer < gloo["bound_s"] < transfer + 0.05


def test_help_is_a_page() -> None:
    done = run("--help")
    assert done.returncode == 0
    for part in ("modes:", "columns", "peers (--against):", "transports (--transport):", "exit status", "--plot"):
        assert part in done.stdout


@pytest.mark.usefixtures("real")
def test_an_output_that_takes_nothing() -> None:
    command = [sys.executable, str(PROGRAM), "--servers", "0", "--sizes", "4K,8K", "--rounds", "2"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert "bps_perf: the output cannot be written: No space left on device" in done.stderr
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        job.stdout.close()
        _, said = job.communicate(timeout=120)
    assert job.returncode == 128 + signal.SIGPIPE, said
    assert "Traceback" not in done.stderr + said
