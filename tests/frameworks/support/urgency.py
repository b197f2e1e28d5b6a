"""Gradients of a deep network leave by their urgency. The backward pass starts them from the last layer to the first;
the next forward pass needs them from the first to the last.

    # One layer. Its gradient is computed in much less time than it takes to travel, on a loaded machine as well:
    hidden = tanh(hidden @ MIX + mean(weights))     # weights: [VALUES]; hidden: [2, WIDTH]; MIX: the identity

    def test_first_layers_overtake_last_ones(run_workers, tmp_path):
        path = tmp_path / "t.json"
        run_workers(_train_deep_network, BYTEPS_TIMELINE=str(path), **QUEUED)
        check_overtaking(path, [f"Gradient.layer{layer:02}" for layer in range(LAYERS)])
"""

from __future__ import annotations

from pathlib import Path

from timelines import Timeline, read_whole

LAYERS = 24
WIDTH = 16
VALUES = 1 << 18  # a megabyte
STEPS = 4

# One part of a tensor is under way at a time, over TCP: the backward pass is faster, and gradients queue up. A tensor
# is one part.
QUEUED = {"BYTEPS_SHM": "0", "BYTEPS_SCHEDULING_CREDIT": "1", "BYTEPS_PARTITION_BYTES": "2M"}


def check_overtaking(path: Path, names: list[str]) -> None:
    """Fails unless gradients went ahead of less urgent ones that had been submitted before, and none stayed behind
    those it should have overtaken. `names`: the most urgent first."""
    timeline = read_whole(path)
    overtaken = sum(_overtaken(timeline, names, step) for step in range(STEPS))
    assert overtaken > 0, "all gradients left in the order in which they were submitted"


def _overtaken(timeline: Timeline, names: list[str], step: int) -> int:
    """How many pairs of a step left in another order than they were submitted in."""
    operations = [timeline.operation("push_pull", name, step) for name in names]
    queues = [timeline.parts(operation)[0]["QUEUE"] for operation in operations]
    count = 0
    for urgent, (operation, queue) in enumerate(zip(operations, queues)):
        ahead = [later for later in range(urgent + 1, len(names)) if queue.begin < queues[later].end < queue.end]
        # What the transport was given when this one came cannot be overtaken.
        assert len(ahead) <= 1, f"step {step}: {names[urgent]} was queued, and {[names[n] for n in ahead]} left"
        count += sum(
            operations[later].begin < operation.begin and queue.end < queues[later].end
            for later in range(urgent + 1, len(names))
        )
    return count
