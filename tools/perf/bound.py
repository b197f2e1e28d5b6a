"""How fast a training step can be, if all that counts is a link that carries so many bytes per second.

    best = bound(model, seconds_per_byte)          # no schedule can be faster
    fifo = first_in_first_out(model, seconds_per_byte)

A step here goes from the beginning of a backward pass to the end of the next forward pass. Gradients become ready in
the course of the one, each takes its bytes' time on the link, and in the other a layer begins when the one before it
has ended and its own new value is there. The forward pass ends at the latest of (end of a transfer + what is left of
the forward pass from that layer on). With transfers that may be interrupted at any byte, it ends earliest if the link
always carries what is needed first of what is ready: Jackson's rule, which is optimal for release dates and tails on
one preemptive machine. Latency, the cutting into partitions and the way through the server only add to that.
"""

from __future__ import annotations

import heapq

from .model import Model


def bound(model: Model, seconds_per_byte: float) -> float:
    """Seconds of a step at best."""
    pending = sorted(model.tensors, key=lambda tensor: tensor.ready)
    waiting: list[tuple[float, int, float]] = []  # begins, number, seconds of transfer left
    now, end, taken = 0.0, model.backward + model.forward, 0
    while taken < len(pending) or waiting:
        if not waiting:
            now = max(now, pending[taken].ready)
        while taken < len(pending) and pending[taken].ready <= now:
            heapq.heappush(waiting, (pending[taken].begins, taken, pending[taken].size * seconds_per_byte))
            taken += 1
        begins, number, left = heapq.heappop(waiting)
        until = pending[taken].ready if taken < len(pending) else float("inf")
        if now + left > until:  # a more urgent one may come
            heapq.heappush(waiting, (begins, number, left - (until - now)))
            now = until
            continue
        now += left
        end = max(end, now + model.forward - begins)
    return end


def first_in_first_out(model: Model, seconds_per_byte: float) -> float:
    """Seconds of a step if the link carries gradients in the order in which they become ready."""
    now, end = 0.0, model.backward + model.forward
    for tensor in sorted(model.tensors, key=lambda tensor: tensor.ready):
        now = max(now, tensor.ready) + tensor.size * seconds_per_byte
        end = max(end, now + model.forward - tensor.begins)
    return end


def at_the_end(model: Model, seconds_per_byte: float) -> float:
    """Seconds of a step if the forward pass begins when everything has come, as after DistributedDataParallel's
    buckets."""
    now = 0.0
    for tensor in sorted(model.tensors, key=lambda tensor: tensor.ready):
        now = max(now, tensor.ready) + tensor.size * seconds_per_byte
    return max(now, model.backward) + model.forward
