"""The network of digits.py, its gradients averaged during the backward pass: three ways to DistributedDataParallel.

    bpslaunch --workers 2 -- python examples/torch/digits_ddp.py                 # byteps.torch.parallel
    bpslaunch --workers 2 -- python examples/torch/digits_ddp.py --by hook       # torch's, gradients by BytePS
    bpslaunch --workers 2 -- python examples/torch/digits_ddp.py --by backend    # torch's, everything by BytePS

The optimizer is an ordinary one. With `hook` torch's process group is Gloo's, which carries what torch's wrapper needs
at its beginning.
"""

import argparse
import time

import byteps.torch as bps
import torch
from digits import accuracy, build_model, load_data
from torch import distributed, nn


def wrap(model: nn.Module, by: str) -> nn.Module:
    """The model whose gradients are averages when backward() returns."""
    if by == "wrapper":
        return bps.parallel.DistributedDataParallel(model)
    # byteps:// is: torch.distributed's ranks are those of the job.
    distributed.init_process_group("gloo" if by == "hook" else "byteps", init_method="byteps://")
    wrapped = nn.parallel.DistributedDataParallel(model)
    if by == "hook":
        wrapped.register_comm_hook(None, bps.comm_hook)
    return wrapped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by", choices=("wrapper", "hook", "backend"), default="wrapper")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="images per step, over all workers")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    bps.init()
    job = bps.info()
    torch.set_num_threads(1)  # several workers share the cores of this host
    torch.manual_seed(args.seed + job.rank)  # the wrapper makes the workers' models equal

    images, labels, test_images, test_labels = load_data()
    model = wrap(build_model(), args.by)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)

    batch_size = max(1, args.batch_size // job.size)
    steps = len(labels) // (batch_size * job.size)
    correct = 0.0
    start = time.perf_counter()
    for epoch in range(1, args.epochs + 1):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(args.seed + epoch))
        mine = order[job.rank :: job.size]
        epoch_start = time.perf_counter()
        total_loss = torch.zeros(())
        for step in range(steps):
            batch = mine[step * batch_size : (step + 1) * batch_size]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            total_loss += loss.detach()
        seconds = time.perf_counter() - epoch_start
        mean_loss = bps.push_pull(total_loss / steps, name="loss").item()
        correct = accuracy(model, test_images, test_labels)
        if job.rank == 0:
            speed = steps * batch_size * job.size / seconds
            print(
                f"epoch {epoch:2}/{args.epochs}  loss {mean_loss:.4f}  test accuracy {correct:.4f}  "
                f"{speed:.0f} samples/s",
                flush=True,
            )
    if job.rank == 0:
        print(
            f"digits by {args.by}: test accuracy {correct:.4f} in {time.perf_counter() - start:.1f} s, "
            f"{job.size} workers, {job.num_servers} servers",
            flush=True,
        )
    if distributed.is_initialized():
        distributed.destroy_process_group()
    bps.shutdown()


if __name__ == "__main__":
    main()
