"""The examples for PyTorch, each run on small data; digits.py has a test of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from jobs import DEADLINE, clean_environment, launcher_command, output_of

pytest.importorskip("torch")

_EXAMPLES = Path(__file__).parents[3] / "examples" / "torch"


def _run(name: str, *arguments: str, servers: int = 0, **variables: str) -> str:
    """What two workers of a program print."""
    return output_of([*launcher_command(2, servers), sys.executable, str(_EXAMPLES / name), *arguments], **variables)


def test_lines_of_the_page(tmp_path: Path) -> None:
    """The program in docs/frameworks/torch.md, as it stands there."""
    page = (_EXAMPLES.parents[1] / "docs" / "frameworks" / "torch.md").read_text()
    section = page.split("## Lines to change")[1].split("##")[0]
    lines = [line for line in section.splitlines() if not line or line.startswith("    ")]
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent("\n".join(lines)))
    output = output_of([*launcher_command(2, 0), sys.executable, str(program)])
    losses = dict(re.findall(r"worker (\d) loss (\S+)", output))
    assert sorted(losses) == ["0", "1"] and losses["0"] == losses["1"] and float(losses["0"]) < 0.1, output


@pytest.mark.parametrize("by", ["wrapper", "hook", "backend"])
def test_digits_by_distributed_data_parallel(by: str) -> None:
    pytest.importorskip("sklearn")
    output = _run("digits_ddp.py", "--epochs", "6", "--by", by)
    assert len(re.findall(r"epoch +\d/6  loss \d\.\d+  test accuracy", output)) == 6, output
    summary = re.search(rf"digits by {by}: test accuracy (\S+) in \S+ s, 2 workers", output)
    assert summary is not None and float(summary[1]) >= 0.93, output


def test_digits_across_the_barrier() -> None:
    pytest.importorskip("sklearn")
    summary = re.search(
        r"digits across the barrier: test accuracy (\S+) in", _run("digits_cross_barrier.py", "--epochs", "6")
    )
    assert summary is not None and float(summary[1]) >= 0.93


def test_digits_asynchronously() -> None:
    """The slow worker takes a quarter of the steps: who waited for it at each of them would wait for ever."""
    pytest.importorskip("sklearn")
    output = _run("digits_async.py", "--epochs", "12", "--slow-worker", "1", servers=1, BYTEPS_ENABLE_ASYNC="1")
    assert len(re.findall(r"worker 0 epoch +\d+/12  loss \d\.\d+  test accuracy", output)) == 12, output
    steps = re.findall(r"worker \d: (\d+) steps in", output)
    assert steps == ["264", "60"], output
    summary = re.search(r"digits asynchronously: test accuracy (\S+) in \S+ s, 2 workers, 1 servers", output)
    assert summary is not None and float(summary[1]) >= 0.9, output


def test_digits_asynchronously_without_the_variable() -> None:
    pytest.importorskip("sklearn")
    done = subprocess.run(
        [*launcher_command(2, 1), sys.executable, str(_EXAMPLES / "digits_async.py")],
        env=clean_environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode != 0 and "set it for workers and servers" in done.stderr, done.stdout + done.stderr


def test_transformer() -> None:
    output = _run("transformer.py", "--steps", "80", "--length", "32", "--width", "32", "--characters", "60000")
    losses = [float(loss) for loss in re.findall(r"step +\d+/80  loss (\S+)", output)]
    assert len(losses) == 10 and losses[-1] < 0.85 * losses[0], output
    assert re.search(r"transformer: loss \S+ in \S+ s, \d+ characters/s, 2 workers", output), output


_SMALL = ("--num-warmup-batches", "1", "--num-batches-per-iter", "1", "--num-iters", "2", "--batch-size", "2")
_TINY = ("--model", "resnet50", "--image-size", "32", "--num-classes", "10")


@pytest.mark.parametrize(
    "arguments",
    [
        _TINY,
        # (BERT's 30,522 words in bfloat16 take minutes on processors that do not multiply it.)
        (*_TINY, "--bf16", "--fp16-allreduce", "--no-efficiency", "--no-cuda"),
        (*_TINY, "--cross-barrier", "--fp16-pushpull"),
        ("--model", "bert", "--layers", "1", "--no-efficiency", "--use-adasum", "--fp16-allreduce"),
    ],
)
def test_synthetic_benchmark(arguments: tuple[str, ...]) -> None:
    output = _run("synthetic_benchmark.py", *_SMALL, *arguments)
    assert len(re.findall(r"together iter \d: \d+\.\d samples/s per worker", output)) == 2, output
    assert re.search(r"samples/s of 2 workers: \d+\.\d", output), output
    assert ("scaling efficiency" in output) == ("--no-efficiency" not in arguments)


def test_synthetic_benchmark_as_in_its_documentation() -> None:
    small = ("--image-size", "32", "--batch-size", "1", "--num-classes", "10")
    short = ("--num-warmup-batches", "1", "--num-batches-per-iter", "1", "--no-efficiency")
    output = _run("synthetic_benchmark.py", "--model", "vgg16", "--num-iters", "10", *small, *short)
    assert "model vgg16: 134.3 million parameters; batch size 1" in output, output
    assert len(re.findall(r"together iter \d: \d+\.\d samples/s per worker", output)) == 10, output


def test_synthetic_benchmark_profiled_and_partitioned() -> None:
    small = ("--image-size", "32", "--num-classes", "10", "--no-efficiency", "--profiler")
    output = _run("synthetic_benchmark.py", *_SMALL, *small, "--partition", "65536")
    assert "aten::convolution" in output and "Self CPU time total" in output, output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--partition", "4"), "BYTEPS_PARTITION_BYTES"), (("--use-adasum", "--cross-barrier"), "take one of them")],
)
def test_synthetic_benchmark_refuses(arguments: tuple[str, ...], words: str) -> None:
    done = subprocess.run(
        [sys.executable, str(_EXAMPLES / "synthetic_benchmark.py"), *arguments],
        env=clean_environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode != 0 and words in done.stderr, done.stderr


def test_models_have_their_sizes() -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("models", _EXAMPLES / "models.py")
    assert spec is not None and spec.loader is not None
    models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)
    import torch

    with torch.device("meta"):
        sizes = {
            name: sum(parameter.numel() for parameter in make().parameters())
            for name, make in (
                ("resnet50", lambda: models.resnet50(1000)),
                ("vgg16", lambda: models.vgg16(1000)),
                ("bert", models.Bert),
            )
        }
    assert sizes["resnet50"] == 25557032 and sizes["vgg16"] == 138357544
    assert 108e6 < sizes["bert"] < 112e6
    with pytest.raises(ValueError, match="known here are"):
        models.build("alexnet99", 1, 32, 10, None, torch.device("cpu"))


def test_check() -> None:
    for launcher, words in (([], "1 workers"), (launcher_command(2, 1), "2 workers, 1 servers")):
        output = output_of([*launcher, sys.executable, "-m", "byteps.torch.check"])
        assert words in output and len(re.findall(r"^(?:\[worker 0\] )?ok ", output, re.M)) == 5, output
    done = subprocess.run(
        [sys.executable, "-m", "byteps.torch.check"],
        env=clean_environment(BYTEPS_TRANSPORT="absent", DMLC_NUM_WORKER="2", DMLC_NUM_SERVER="1"),
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 1 and "FAIL init" in done.stdout, done.stdout
