from __future__ import annotations

import pytest
from launching import Start

from launcher.environment import Environment
from launcher.failure import LaunchError
from launcher.gpus import visible_gpu

ASKED = {"BYTEPS_SET_CUDA_VISIBLE_DEVICES": "1"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ["0", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "5,3"}, ["5", "3"]),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-a, GPU-b ,2"}, ["GPU-a", "GPU-b"]),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, ["0", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "7,6", "NVIDIA_VISIBLE_DEVICES": "0,1"}, ["7", "6"]),
    ],
)
def test_one_gpu_for_each_worker(variables: dict[str, str], expected: list[str]) -> None:
    assert [visible_gpu(Environment(ASKED | variables), rank, 2) for rank in range(2)] == expected
    assert visible_gpu(Environment(variables), 0, 2) is None, "nobody has asked"


@pytest.mark.parametrize("gpus", ["0", "none", "void"])
def test_fewer_gpus_than_workers(gpus: str) -> None:
    with pytest.raises(LaunchError, match="GPUs for 2 workers"):
        visible_gpu(Environment(ASKED | {"NVIDIA_VISIBLE_DEVICES": gpus}), 0, 2)


def test_what_workers_see(start: Start) -> None:
    show = ["sh", "-c", "echo rank $BYTEPS_LOCAL_RANK sees $CUDA_VISIBLE_DEVICES"]
    launch = start("--workers", "2", "--", *show, variables=ASKED | {"CUDA_VISIBLE_DEVICES": "4,2"})
    assert launch.wait() == 0, launch.stderr
    assert sorted(launch.stdout.splitlines()) == ["[worker 0] rank 0 sees 4", "[worker 1] rank 1 sees 2"]
    launch = start("--workers", "2", "--", *show, variables=ASKED | {"CUDA_VISIBLE_DEVICES": "4"})
    assert launch.wait() == 2
    assert "CUDA_VISIBLE_DEVICES=4 has 1 GPUs for 2 workers of this host" in launch.stderr
