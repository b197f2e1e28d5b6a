"""A sampler that knows what was processed, and divides the rest among the workers that there are."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sized
from typing import Any

from byteps.basics import rank, size

import torch


class ElasticSampler(torch.utils.data.Sampler):  # type: ignore[type-arg]
    """As torch.utils.data.DistributedSampler, but for what was processed already in this epoch.

    Call record_batch() after each batch, and set_epoch() at the end of an epoch::

        sampler = ElasticSampler(dataset)
        loader = DataLoader(dataset, batch_size=32, sampler=sampler)

    Args:
        dataset: whose length counts.
        shuffle: in another order in each epoch.
        seed: of the orders; the same on all ranks.

    Raises:
        ValueError: before init().
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """A new epoch: nothing is processed. Call it at the end of the one before, so that a state that is saved
        in between does not repeat it."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """This worker has processed its batch number `batch_idx` of this size."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Any) -> None:
        """These elements of the dataset are processed."""
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The elements of this worker's batch number `batch_idx`."""
        begin = batch_idx * batch_size
        return self.indices[begin : min(begin + batch_size, len(self.indices))]

    def state_dict(self) -> dict[str, Any]:
        """What load_state_dict() takes: of one rank it will do for all. The other ranks count as having processed as
        much as this one, as in Horovod."""
        order = self._order()
        done = self.processed_indices.union(
            *(
                order[place * self.num_replicas : (place + 1) * self.num_replicas]
                for place, index in enumerate(order[self.rank :: self.num_replicas])
                if index in self.processed_indices
            )
        )
        return {"epoch": self.epoch, "processed_indices": done}

    def recorded(self) -> dict[str, Any]:
        """What load_state_dict() takes, with what this rank has recorded alone."""
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where the state was taken, also one of Horovod's sampler, for the same dataset, shuffle and seed."""
        self.epoch = state_dict["epoch"]
        if "processed_num" in state_dict:  # Horovod's counts from the beginning of its order of the epoch
            order = list(range(len(self.dataset)))
            if self.shuffle:
                random.Random(self.seed + self.epoch).shuffle(order)
            self.processed_indices = set(order[: state_dict["processed_num"]])
        else:
            self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def reset(self) -> None:
        """Divides what is not processed among the workers that there are now."""
        self.num_replicas = size()
        self.rank = rank()
        self.remaining_indices = [index for index in range(len(self.dataset)) if index not in self.processed_indices]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.indices: list[int] = self._own()

    def _own(self) -> list[int]:
        return self._order()[self.rank :: self.num_replicas]

    def _order(self) -> list[int]:
        """What was not processed at the last reset(), in the order of all ranks, one element for each by turns."""
        order = self.remaining_indices.copy()
        if self.shuffle:
            # All ranks in the same order.
            random.Random(self.seed + self.epoch).shuffle(order)
        if order:
            order += (order * math.ceil(self.total_size / len(order)))[: self.total_size - len(order)]
        return order[: self.total_size]

    def __iter__(self) -> Iterator[int]:
        self.indices = self._own()
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
