"""The network of digits.py without a barrier between steps: gradients come home beneath the next forward pass.

    bpslaunch --workers 2 -- python examples/torch/digits_cross_barrier.py

Each layer waits for its own parameters alone. The weights are those of training without it, to the bit.
"""

import argparse
import time

import byteps.torch.cross_barrier as bps
import torch
from byteps import info
from byteps.torch import push_pull
from digits import accuracy, build_model, load_data
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="images per step, over all workers")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    bps.init()
    job = info()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed + job.rank)

    images, labels, test_images, test_labels = load_data()
    model = build_model()
    batch_size = max(1, args.batch_size // job.size)
    steps = len(labels) // (batch_size * job.size)
    optimizer = bps.CrossBarrier(
        model,
        torch.optim.Adam(model.parameters(), lr=args.learning_rate),
        named_parameters=model.named_parameters(),
        num_steps=args.epochs * steps,
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)

    correct = 0.0
    start = time.perf_counter()
    for epoch in range(1, args.epochs + 1):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(args.seed + epoch))
        mine = order[job.rank :: job.size]
        total_loss = torch.zeros(())
        for step in range(steps):
            batch = mine[step * batch_size : (step + 1) * batch_size]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()  # returns at once
            total_loss += loss.detach()
        mean_loss = push_pull(total_loss / steps, name="loss").item()
        correct = accuracy(model, test_images, test_labels)
        if job.rank == 0:
            print(f"epoch {epoch:2}/{args.epochs}  loss {mean_loss:.4f}  test accuracy {correct:.4f}", flush=True)
    if job.rank == 0:
        seconds = time.perf_counter() - start
        print(
            f"digits across the barrier: test accuracy {correct:.4f} in {seconds:.1f} s, {job.size} workers", flush=True
        )
    bps.shutdown()


if __name__ == "__main__":
    main()
