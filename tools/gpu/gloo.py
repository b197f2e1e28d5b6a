"""What Gloo takes for the tensors of rates.py, in two processes: the peer of PyTorch's users without NCCL.

    python3 -m gpu.gloo --out gloo.json

On CUDA tensors of one GPU, or of one each where there are two. Ends with 77 where there is no PyTorch with CUDA; with
--small, which is for tests, it takes the CPU's tensors there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MIB = 1 << 20
NOT_RUN = 77


def worker(rank: int, store: str, small: bool) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    shared = dist.FileStore(store, 2)
    dist.init_process_group("gloo", store=shared, rank=rank, world_size=2)
    rows = []
    for size, tensors in ((65536, 3),) if small else ((4 * MIB, 16), (16 * MIB, 4), (64 * MIB, 1)):
        numbers = (torch.arange(size // 4) % 1000).to(torch.float32)
        all_of_them = [(numbers + 2 * rank).to(device) for _ in range(tensors)]

        def run(rounds: int, tensors: list[torch.Tensor]) -> float:
            began = time.perf_counter()
            for _ in range(rounds):
                works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
                for work, tensor in zip(works, tensors):
                    work.wait()
                    tensor.div_(2)
            if on_gpu:
                torch.cuda.synchronize(device)
            return time.perf_counter() - began

        once = run(2, all_of_them) / 2
        # Of one type on both ranks, be it one of the limits or not: Gloo does not look.
        agreed = torch.tensor([int(max(2, min(200, (0.01 if small else 1.5) / once)))], dtype=torch.int64)
        dist.broadcast(agreed, 0)
        rounds = int(agreed.item())
        took = run(rounds, all_of_them)
        for tensor in all_of_them:
            assert torch.equal(tensor.cpu(), numbers + 1), "Gloo's result is not what it should be"
        rows.append({"bytes": size, "tensors": tensors, "gb_s": size * tensors * rounds / took / 1e9})
    # A rank that leaves closes its connections, in which the other's last operation may still be under way.
    shared.set(f"done.{rank}", "")
    shared.wait([f"done.{1 - rank}"])
    dist.destroy_process_group()
    return {"rows": rows, "best": max(row["gb_s"] for row in rows), "device": str(device.type)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--store")
    given = parser.parse_args()
    if given.rank is not None:
        figures = worker(given.rank, given.store, given.small)
        if given.rank == 0:
            given.out.write_text(json.dumps(figures))
            print(json.dumps(figures, indent=1))
        return 0
    try:
        import torch
    except ImportError as error:
        print(f"not run: no PyTorch: {error}")
        return NOT_RUN
    if not given.small and not torch.cuda.is_available():
        print("not run: PyTorch has no CUDA here")
        return NOT_RUN
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gpu.gloo", *sys.argv[1:], "--store", f"{folder}/store"]
        processes = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(2)]
        return max(abs(process.wait()) for process in processes)


if __name__ == "__main__":
    sys.exit(main())
