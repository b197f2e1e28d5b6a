"""Data-parallel training of a small network on handwritten digits, with NumPy alone.

    bpslaunch --workers 2 -- python examples/numpy/digits.py [EPOCHS [FILE]]

What makes this training data-parallel is marked [1] to [5]; with one worker it is an ordinary program.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import byteps
import numpy as np

PIXELS, HIDDEN, DIGITS = 64, 128, 10
BATCH_SIZE = 64  # over all workers
LEARNING_RATE = 5e-3
SEED = 1


def read_digits(file: Path) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Images (pixels 0 to 1, a row each) and digits, to train on and for the test; examples/data/README.md says how
    they are stored."""
    data = np.fromfile(file, np.uint8)
    if len(data) == 0 or len(data) % (PIXELS + 1) != 0:
        raise ValueError(f"{file} has {len(data)} bytes, no multiple of {PIXELS + 1}")
    records = data.reshape(-1, PIXELS + 1)
    images, digits = records[:, :PIXELS].astype("float32") / 16, records[:, PIXELS].astype("int64")
    test = len(images) // 5  # the first fifth is for the test
    return (images[test:], digits[test:]), (images[:test], digits[:test])


class Network:
    """A perceptron with one hidden layer: weights and biases of both layers, their gradients, and Adam."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        shapes = (PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, DIGITS), (DIGITS,)
        scales = ((6 / PIXELS) ** 0.5, 0, (6 / HIDDEN) ** 0.5, 0)
        self.parameters = [
            (scale * random.uniform(-1, 1, shape)).astype("float32") for shape, scale in zip(shapes, scales)
        ]
        self.gradients = [np.zeros_like(parameter) for parameter in self.parameters]
        self._means = [np.zeros_like(parameter) for parameter in self.parameters]
        self._squares = [np.zeros_like(parameter) for parameter in self.parameters]
        self._steps = 0

    def outputs(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The hidden layer and the outputs."""
        first, first_bias, second, second_bias = self.parameters
        hidden = np.maximum(images @ first + first_bias, 0)
        return hidden, hidden @ second + second_bias

    def accuracy(self, images: np.ndarray, digits: np.ndarray) -> float:
        """The share of images whose digit it says."""
        return float((self.outputs(images)[1].argmax(axis=1) == digits).mean())

    def step(self) -> None:
        """One step of Adam."""
        self._steps += 1
        first, second = 1 - 0.9**self._steps, 1 - 0.999**self._steps
        for parameter, gradient, mean, square in zip(self.parameters, self.gradients, self._means, self._squares):
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient**2 - square)
            parameter -= LEARNING_RATE * (mean / first) / (np.sqrt(square / second) + 1e-8)


def train_batch(network: Network, images: np.ndarray, digits: np.ndarray) -> float:
    """The mean cross entropy of a batch, after a step that all workers take alike."""
    hidden, outputs = network.outputs(images)
    errors = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    errors /= errors.sum(axis=1, keepdims=True)
    rows = np.arange(len(digits))
    loss = -float(np.log(errors[rows, digits]).mean())
    errors[rows, digits] -= 1
    errors /= len(digits)

    def send(index: int) -> byteps.Operation:
        # [4] average over all workers, in place; returns at once
        gradient = network.gradients[index]
        return byteps.push_pull_async(gradient, gradient, name=f"parameter.{index}", priority=-index)

    # The gradients of the last layer travel while those of the first are computed.
    np.matmul(hidden.T, errors, out=network.gradients[2])
    network.gradients[3][:] = errors.sum(axis=0)
    operations = [send(2), send(3)]
    hidden_errors = (errors @ network.parameters[2].T) * (hidden > 0)
    np.matmul(images.T, hidden_errors, out=network.gradients[0])
    network.gradients[1][:] = hidden_errors.sum(axis=0)
    for operation in [*operations, send(0), send(1)]:
        operation.wait()
    network.step()
    return loss


def main() -> None:
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    file = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parents[1] / "data" / "digits.bin"
    (images, digits), test = read_digits(file)
    byteps.init()  # [1] join the job
    job = byteps.info()

    network = Network(SEED + job.rank)  # they differ, so that only [2] makes them equal
    for index, parameter in enumerate(network.parameters):
        byteps.broadcast(parameter, 0, parameter, name=f"parameter.{index}")  # [2] start from the same weights

    batch_size = max(1, BATCH_SIZE // job.size)
    steps = len(digits) // (batch_size * job.size)
    accuracy, start = 0.0, time.monotonic()
    for epoch in range(1, epochs + 1):
        order = np.random.default_rng(SEED + epoch).permutation(len(digits))  # the same on all workers
        mine = order[job.rank :: job.size]  # [3] each takes its part
        epoch_start, losses = time.monotonic(), []
        for batch in np.split(mine[: steps * batch_size], steps):
            losses.append(train_batch(network, images[batch], digits[batch]))
        seconds = time.monotonic() - epoch_start

        loss = byteps.push_pull(np.array([np.mean(losses)]), name="loss")[0]  # [5] the mean over all workers
        accuracy = network.accuracy(*test)
        if job.rank == 0:
            rate = steps * batch_size * job.size / seconds
            print(f"epoch {epoch:2}/{epochs}  loss {loss:.4f}  test accuracy {accuracy:.4f}  {rate:.0f} samples/s")
    if job.rank == 0:
        print(
            f"digits: test accuracy {accuracy:.4f} in {time.monotonic() - start:.1f} s, {job.size} workers, "
            f"{job.num_servers} servers, transport {job.transport}, scheduler {job.scheduler}"
        )
    byteps.shutdown()


if __name__ == "__main__":
    main()
