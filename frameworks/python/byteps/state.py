"""State that survives a failure: what is committed can be restored, and sent to the others. Frameworks add their own.

    state = bps.elastic.TensorFlowKerasState(model, optimizer, epoch=0)
    state.sync()                    # all workers start from rank 0's
    while state.epoch < epochs:
        train(model)
        state.epoch += 1
        state.commit()              # restore() comes back to here

After a member of the job has died its session cannot be used any more: leave with byteps.shutdown(), join the new job
with byteps.init(), then state.restore() and state.sync().
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from byteps.objects import broadcast_object


class ObjectState:
    """Values that can be pickled, as attributes: ObjectState(epoch=0, batch=0)."""

    def __init__(self, **values: Any) -> None:
        self._names = sorted(values)
        self._reset_callbacks: list[Callable[[], None]] = []
        for name, value in values.items():
            setattr(self, name, value)
        self._saved = copy.deepcopy(self._values())

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Functions that on_reset() calls, such as one that sets the learning rate for another number of workers."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Calls what was registered; for after a new init()."""
        for callback in self._reset_callbacks:
            callback()

    def save(self) -> None:
        """Keeps the values as they are now."""
        self._saved = copy.deepcopy(self._values())

    def commit(self) -> None:
        """The same: the point that restore() comes back to."""
        self.save()

    def restore(self) -> None:
        """Comes back to what was saved last, at first to what the state was made with."""
        for name, value in copy.deepcopy(self._saved).items():
            setattr(self, name, value)

    def sync(self, root_rank: int = 0) -> None:
        """Takes over the root's values, and saves them.

        Raises:
            BytePSError: see byteps.broadcast_object.
            ValueError: before init().
        """
        for name, value in broadcast_object(self._values(), root_rank, name=f"{type(self).__name__}.values").items():
            setattr(self, name, value)
        self.save()
