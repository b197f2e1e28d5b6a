"""How many images or samples a second, on made-up data: the benchmark that BytePS and Horovod users know.

    bpslaunch --workers 2 -- python examples/torch/synthetic_benchmark.py --model vgg16 --num-iters 10

Prints what each worker and all together reach, and the scaling efficiency: against the same workers at the same time
with an optimizer that sends nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable

import byteps.torch as bps
import torch
from models import build


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", help="resnet50, vgg16, bert, or one of torchvision's")
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    parser.add_argument("--num-classes", type=int, default=1000)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--layers", type=int, help="of bert: 12 unless said")
    parser.add_argument("--fp16-pushpull", "--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16 (autocast)")
    parser.add_argument("--no-cuda", action="store_true", help="on the CPU also where there is a GPU")
    parser.add_argument("--cross-barrier", action="store_true", help="overlap with the next forward pass")
    parser.add_argument("--no-efficiency", action="store_true", help="leave out the runs without communication")
    parser.add_argument("--threads", type=int, help="of each worker: its share of the cores unless said")
    parser.add_argument("--use-adasum", action="store_true", help="combine the workers' steps by Adasum")
    parser.add_argument("--profiler", action="store_true", help="print what the operations of rank 0 take")
    parser.add_argument("--partition", type=int, help="bytes of a partition at most (BYTEPS_PARTITION_BYTES)")
    args = parser.parse_args()
    if args.use_adasum and args.cross_barrier:
        parser.error("--use-adasum combines whole steps, and --cross-barrier sends gradients: take one of them")
    return args


def measure(step: Callable[[], None], args: argparse.Namespace, label: str, sync: Callable[[], None]) -> float:
    """Samples per second of this worker: the median over the iterations."""
    for _ in range(args.num_warmup_batches):
        step()
    speeds = []
    for number in range(args.num_iters):
        sync()
        start = time.perf_counter()
        for _ in range(args.num_batches_per_iter):
            step()
        sync()
        speeds.append(args.batch_size * args.num_batches_per_iter / (time.perf_counter() - start))
        if bps.rank() == 0:
            print(f"{label} iter {number}: {speeds[-1]:.1f} samples/s per worker", flush=True)
    return statistics.median(speeds)


def profiled(wanted: bool) -> contextlib.AbstractContextManager[torch.profiler.profile | None]:
    """PyTorch's profiler, or nothing."""
    if not wanted:
        return contextlib.nullcontext()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(activities=activities)


def main() -> None:
    args = arguments()
    if args.partition is not None:
        os.environ["BYTEPS_PARTITION_BYTES"] = str(args.partition)  # init() reads it, and refuses what cannot be
    bps.init()
    on_gpu = torch.cuda.is_available() and not args.no_cuda
    device = torch.device("cuda", bps.local_rank() % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    if not on_gpu:
        torch.set_num_threads(args.threads or max(1, torch.get_num_threads() // bps.local_size()))
    torch.manual_seed(bps.rank())
    model, make_batch = build(args.model, args.batch_size, args.image_size, args.num_classes, args.layers, device)
    inputs, loss_of = make_batch()
    plain = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step_of(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        def step() -> None:
            optimizer.zero_grad(set_to_none=False)
            with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
                loss = loss_of(model(inputs))
            loss.backward()
            optimizer.step()

        return step

    def sync() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    if bps.rank() == 0:
        parameters = sum(parameter.numel() for parameter in model.parameters())
        print(
            f"model {args.model}: {parameters / 1e6:.1f} million parameters; batch size {args.batch_size}", flush=True
        )
    # First, while no hook sends anything.
    alone = None if args.no_efficiency else measure(step_of(plain), args, "alone", sync)
    optimizer = bps.DistributedOptimizer(
        plain,
        named_parameters=model.named_parameters(),
        compression=bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none,
        op=bps.Adasum if args.use_adasum else bps.Average,
        overlap_forward=model if args.cross_barrier else None,
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)

    def wait() -> None:
        optimizer.finish_step()
        sync()

    with profiled(args.profiler and bps.rank() == 0) as profile:
        together = measure(step_of(optimizer), args, "together", wait)
    if profile is not None:
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=20), flush=True)
    mine = torch.tensor([together, 0.0 if alone is None else alone], dtype=torch.float64)
    mean, mean_alone = bps.push_pull(mine, name="speed").tolist()
    if bps.rank() == 0:
        print(f"samples/s per worker: {mean:.1f}")
        print(f"samples/s of {bps.size()} workers: {mean * bps.size():.1f}")
        if alone is not None:
            print(f"scaling efficiency: {100 * mean / mean_alone:.1f}% of {mean_alone:.1f} without communication")
    bps.shutdown()


if __name__ == "__main__":
    main()
