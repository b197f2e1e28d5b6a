"""The network of digits.py, trained asynchronously: the servers keep the weights, and no worker waits for another.

    BYTEPS_ENABLE_ASYNC=1 bpslaunch --workers 2 --servers 1 -- python examples/torch/digits_async.py --slow-worker 1

A step adds to the servers' weights what the optimizer has changed, and returns with the steps of the others so far. A
slow worker takes fewer steps; the others go on at their own speed. docs/async.md says more.
"""

import argparse
import os
import time

import byteps.torch as bps
import torch
from byteps.asynchronous import asynchronous_training
from digits import accuracy, build_model, load_data
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="images per step, over all workers")
    parser.add_argument(
        "--learning-rate", type=float, default=0.05, help="of one worker; the steps of all are added up"
    )
    parser.add_argument("--slow-worker", type=int, help="the rank that is made slow; none unless said")
    parser.add_argument("--slowdown", type=float, default=4, help="how many times longer a step of it takes")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    bps.init()
    job = bps.info()
    if job.size > 1 and not asynchronous_training():
        parser.error("without BYTEPS_ENABLE_ASYNC=1 workers wait for each other; set it for workers and servers")
    if args.slow_worker is not None and not (0 <= args.slow_worker < job.size and args.slowdown >= 1):
        parser.error(f"--slow-worker is one of {job.size} ranks, counted from 0, and --slowdown at least 1")
    torch.set_num_threads(1)  # several workers share the cores of this host
    torch.manual_seed(args.seed + job.rank)

    images, labels, test_images, test_labels = load_data()
    model = build_model()
    # Nothing else is asynchronous about the program: BYTEPS_ENABLE_ASYNC decides.
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.5),
        named_parameters=model.named_parameters(),
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)

    batch_size = max(1, args.batch_size // job.size)
    steps = len(labels) // (batch_size * job.size)
    slow = args.slow_worker == job.rank
    # Under a bound of staleness a worker that stopped early would have the others wait.
    if slow and "BYTEPS_STALENESS" not in os.environ:
        steps = max(1, int(steps / args.slowdown))
    start = time.perf_counter()
    for epoch in range(1, args.epochs + 1):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(args.seed + epoch))
        mine = order[job.rank :: job.size]
        total_loss = 0.0
        for step in range(steps):
            begun = time.perf_counter()
            batch = mine[step * batch_size : (step + 1) * batch_size]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            total_loss += loss.item()
            if slow:
                time.sleep((args.slowdown - 1) * (time.perf_counter() - begun))
        # Its own: a mean over the workers would have them wait.
        print(
            f"worker {job.rank} epoch {epoch:2}/{args.epochs}  loss {total_loss / steps:.4f}  "
            f"test accuracy {accuracy(model, test_images, test_labels):.4f}",
            flush=True,
        )
    seconds = time.perf_counter() - start

    # The steps of all are with the servers when all have ended. A step whose change is zero fetches the sum.
    bps.barrier()
    for group in optimizer.param_groups:
        group.update(lr=0.0)
    optimizer.zero_grad()
    optimizer.step()
    every = bps.allgather(torch.tensor([[args.epochs * steps, seconds]]), name="summary").tolist()
    if job.rank == 0:
        for rank, (taken, spent) in enumerate(every):
            print(f"worker {rank}: {int(taken)} steps in {spent:.1f} s")
        print(
            f"digits asynchronously: test accuracy {accuracy(model, test_images, test_labels):.4f} in "
            f"{max(spent for _, spent in every):.1f} s, {job.size} workers, {job.num_servers} servers",
            flush=True,
        )
    bps.shutdown()


if __name__ == "__main__":
    main()
