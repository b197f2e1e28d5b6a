"""What an elastic training function works on: committed, restored, and made alike on all ranks. The modules of the
frameworks add states of models and optimizers."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Iterable
from typing import Any

from byteps.arrays import push_pull
from byteps.errors import HostsUpdatedInterrupt
from byteps.objects import broadcast_object
from byteps.reduce_op import Max


class State:
    """The interface: subclasses say what is saved, restored and sent.

    Args:
        bcast_object: what subclasses send an object of rank 0 with; None: byteps.broadcast_object.
        get_rank: accepted for compatibility with Horovod.
    """

    def __init__(
        self, bcast_object: Callable[..., Any] | None = None, get_rank: Callable[[], int] | None = None
    ) -> None:
        del get_rank
        self._bcast_object = bcast_object
        self.commits = 0  # how often commit() was called
        self._reset_callbacks: list[Callable[[], None]] = []
        self._updated: HostsUpdatedInterrupt | None = None

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Calls these after each reset, in this order: for what depends on the number of workers, such as the learning
        rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The session was joined anew."""
        self._updated = None
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float = 0.0, skip_sync: bool = False) -> None:
        """The members will change: the next commit() or check_host_updates() interrupts the function.

        Args:
            timestamp: accepted for compatibility.
            skip_sync: members are only removed.
        """
        del timestamp
        self._updated = HostsUpdatedInterrupt(skip_sync)

    def commit(self) -> None:
        """Saves the state; a failure takes training back to here. Then check_host_updates()."""
        self.save()
        self.commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt if on_hosts_updated() was called on any rank; all ranks do so together."""
        most = array("i", [0 if self._updated is None else 1 if self._updated.skip_sync else 2])
        push_pull(most, most, name="elastic.updates", op=Max)
        if most[0] > 0:
            raise HostsUpdatedInterrupt(skip_sync=most[0] == 1)

    def save(self) -> None:
        """Keeps the state in memory, for restore()."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what save() has kept."""
        raise NotImplementedError

    def sync(self, root_rank: int = 0) -> None:
        """Gives all ranks the state of the root, and saves it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapts to a session that was joined anew."""


def _check_copied(name: str, value: Any) -> None:
    """Raises TypeError, which names the attribute, if its value cannot be copied."""
    try:
        copy.deepcopy(value)
    except Exception as error:
        raise TypeError(
            f"{name} is a {type(value).__name__}, which cannot be copied: {error}. Keep it out of the state, or give "
            "what it can be made of again"
        ) from error


class ObjectState(State):
    """Plain attributes.

    Args:
        bcast_object: sends the values in sync(): bcast_object(values) returns those of rank 0. With another root it is
            called with root_rank=, too. None: byteps.broadcast_object.
        get_rank: accepted for compatibility with Horovod.
        values: names and values that can be pickled; attributes of the state from then on.
    """

    def __init__(
        self,
        bcast_object: Callable[..., Any] | None = None,
        get_rank: Callable[[], int] | None = None,
        **values: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._names = list(values)
        for name, value in values.items():
            setattr(self, name, value)
        self._saved: dict[str, Any] = {}
        ObjectState.save(self)

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def save(self) -> None:
        """Keeps copies of the attributes. Raises TypeError for one that cannot be copied."""
        values = self._values()
        try:
            self._saved = copy.deepcopy(values)
        except Exception:
            for name, value in values.items():
                _check_copied(name, value)
            raise

    def restore(self) -> None:
        """Sets the attributes to what was kept."""
        self._set(copy.deepcopy(self._saved))

    def sync(self, root_rank: int = 0) -> None:
        """Sets the attributes to those of the root, and saves.

        Raises:
            BytePSError: see byteps.broadcast_object.
            ValueError: before init(), or the root is not a rank.
        """
        if self._names:
            self._set(self._values_of(root_rank))
        self.save()

    def _values_of(self, root_rank: int) -> dict[str, Any]:
        values: dict[str, Any]
        if self._bcast_object is None:
            values = broadcast_object(self._values(), root_rank, name=f"{type(self).__name__}.values")
        elif root_rank == 0:
            values = self._bcast_object(self._values())
        else:
            values = self._bcast_object(self._values(), root_rank=root_rank)
        return values
