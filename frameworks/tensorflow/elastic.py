"""Training that survives a failed operation: the state of variables and models. See byteps.elastic."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from byteps.elastic import ObjectState, State, run
from byteps.tensorflow.variables import broadcast_variables

import tensorflow as tf

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]


class TensorFlowState(ObjectState):
    """Variables of TensorFlow or Keras, and values.

    Args:
        variables: the same on all ranks, initialised; None: the global ones of TensorFlow 1.
        session: of TensorFlow 1, whose graph the variables are in and is not finalized; None in eager execution.
        values: further values, as of ObjectState.

    Raises:
        ValueError: before init(); in a graph, and no session was given.
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **values: Any) -> None:
        if session is None and not tf.executing_eagerly():
            raise ValueError("TensorFlowState in a graph of TensorFlow 1 needs session=")
        self._session = session
        self._broadcasts: dict[int, Any] = {}  # ops of the session's graph, by root
        with contextlib.nullcontext() if session is None else session.graph.as_default():
            # Listed now: what can be gone through once alone would be empty at the second save(), and at sync().
            self._given = list(tf.compat.v1.global_variables() if variables is None else variables)
        super().__init__(**values)
        self.save()

    def _variables(self) -> list[Any]:
        return self._given

    def _of_all_workers(self) -> list[Any]:
        """Those that sync() sends."""
        return self._variables()

    def save(self) -> None:
        """Keeps values and variables as they are now."""
        variables = self._variables()
        if self._session is None:
            arrays = [tf.convert_to_tensor(variable).numpy().copy() for variable in variables]
        else:
            arrays = self._session.run(variables)
        super().save()
        self._arrays = list(zip(variables, arrays))

    def restore(self) -> None:
        """Comes back to what was saved last."""
        super().restore()
        for variable, array in self._arrays:
            if self._session is None:
                variable.assign(array)
            else:
                variable.load(array, self._session)

    def sync(self, root_rank: int = 0) -> None:
        """Takes over the root's variables and values, and saves them."""
        if self._session is None:
            self._broadcast(root_rank)
        else:
            if root_rank not in self._broadcasts:
                with self._session.graph.as_default():
                    self._broadcasts[root_rank] = self._broadcast(root_rank)
            self._session.run(self._broadcasts[root_rank])
        super().sync(root_rank)

    def _broadcast(self, root_rank: int) -> Any:
        return broadcast_variables(self._of_all_workers(), root_rank, scope=f"{type(self).__name__}.")


class TensorFlowKerasState(TensorFlowState):
    """A model of Keras with its optimizer, and values. What random numbers come from stays this worker's own in sync();
    save() and restore() have it like all variables.

    Args:
        model: a built model.
        optimizer: None: the model's, if it is compiled.
        backend: accepted for compatibility: Horovod's is the module of Keras's backend.
        values: further values, as of ObjectState.

    Raises:
        ValueError: the model is not built.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **values: Any) -> None:
        # Not above: byteps.keras needs a Keras to be imported.
        from byteps.keras.built import refuse_unbuilt

        del backend
        refuse_unbuilt(model)
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        super().__init__((), **values)

    def _variables(self) -> list[Any]:
        if self.optimizer is None:
            return list(self.model.variables)
        from byteps.keras.built import build_optimizer

        build_optimizer(self.optimizer, self.model.trainable_variables)
        of_optimizer = self.optimizer.variables
        return [*self.model.variables, *(of_optimizer() if callable(of_optimizer) else of_optimizer)]

    def _of_all_workers(self) -> list[Any]:
        from byteps.keras.arrays import without_random_states

        return without_random_states(self._variables())
