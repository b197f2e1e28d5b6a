"""Ray in short, in one cluster: an executor whose worker dies, and which starts again; and Ray Train, which does so
by itself."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("ray", reason="ray is not installed")

from byteps.ray import RayExecutor
from ray_network import in_own_network
from signatures import REQUIRED, check

# Of Horovod 0.28. Elastic jobs have more arguments, which are refused by name (ray_body.wrong).
_ARGUMENTS = [("args", None), ("kwargs", None)]
HOROVOD = {
    "__init__": [
        ("self", REQUIRED),
        ("settings", REQUIRED),
        ("num_workers", None),
        ("num_hosts", None),
        ("num_workers_per_host", 1),
        ("cpus_per_worker", 1),
        ("use_gpu", False),
        ("gpus_per_worker", None),
        ("use_current_placement_group", True),
    ],
    "create_settings": [
        ("timeout_s", REQUIRED),
        ("ssh_identity_file", None),
        ("ssh_str", None),
        ("placement_group_timeout_s", 100),
        ("nics", None),
    ],
    "start": [
        ("self", REQUIRED),
        ("executable_cls", None),
        ("executable_args", REQUIRED),
        ("executable_kwargs", None),
        ("extra_env_vars", None),
    ],
    "execute": [("self", REQUIRED), ("fn", REQUIRED), ("callbacks", None)],
    "run": [("self", REQUIRED), ("fn", REQUIRED), *_ARGUMENTS, ("callbacks", None)],
    "run_remote": [("self", REQUIRED), ("fn", REQUIRED), *_ARGUMENTS],
    "execute_single": [("self", REQUIRED), ("fn", REQUIRED)],
    "shutdown": [("self", REQUIRED)],
}


@pytest.mark.parametrize("name", HOROVOD)
def test_horovods_methods(name: str) -> None:
    check(getattr(RayExecutor, name), HOROVOD[name])


def test_executor_and_train() -> None:
    cases = ["worker_dies"]
    # Ray Train needs both.
    if all(importlib.util.find_spec(name) is not None for name in ("pyarrow", "torch")):
        cases.append("train")
    output = in_own_network(*cases)
    assert all(f"{case}: well" in output for case in cases), output
    if "train" not in cases:
        pytest.skip("ray[train] or torch is not installed: the executor alone has run")
