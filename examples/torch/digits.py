"""Data-parallel training of a small convolutional network on handwritten digits.

    bpslaunch --workers 2 -- python examples/torch/digits.py

The data are the 1797 images of 8 x 8 pixels that scikit-learn ships. What makes this training data-parallel is marked
[1] to [6]; everything else is as in any PyTorch program, and with one worker it is one:

    python examples/torch/digits.py
"""

import argparse
import time

import byteps.torch as bps
import torch
from sklearn.datasets import load_digits
from torch import nn


def load_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training and test images (N, 1, 8, 8) and labels (N); a fifth of the images is for the test."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))  # the same on all workers
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    return images[train], labels[train], images[test], labels[test]


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    correct = (model(images).argmax(dim=1) == labels).float().mean().item()
    model.train()
    return correct


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="images per step, over all workers")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    bps.init()  # [1] join the job
    job = bps.info()
    torch.set_num_threads(1)  # several workers share the cores of this host
    torch.manual_seed(args.seed + job.rank)  # so that only [3] and [4] can make the workers' models equal

    images, labels, test_images, test_labels = load_data()
    model = build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    # [2] average the gradients over all workers, while the backward pass still runs
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)  # [3] start from the same weights
    bps.broadcast_optimizer_state(optimizer, root_rank=0)  # [4] ... and the same optimizer

    batch_size = max(1, args.batch_size // job.size)
    steps = len(labels) // (batch_size * job.size)
    correct = 0.0
    start = time.perf_counter()
    for epoch in range(1, args.epochs + 1):
        # The same order on all workers; [5] each takes its own part of every batch.
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

        mean_loss = bps.push_pull(total_loss / steps, name="loss").item()  # [6] the mean over all workers
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
            f"digits: test accuracy {correct:.4f} in {time.perf_counter() - start:.1f} s, {job.size} workers, "
            f"{job.num_servers} servers, transport {job.transport}, scheduler {job.scheduler}",
            flush=True,
        )
    bps.shutdown()


if __name__ == "__main__":
    main()
