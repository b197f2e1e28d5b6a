"""Training that survives a failed operation; what the frameworks share. Use byteps.torch.elastic,
byteps.tensorflow.elastic or byteps.keras.elastic, which add states of models and optimizers::

    state = bps.elastic.TensorFlowKerasState(model, optimizer, epoch=0)

    @bps.elastic.run
    def train(state):
        while state.epoch < epochs:
            train_one_epoch(model)
            state.epoch += 1
            state.commit()              # a failure takes training back to here

    train(state)                        # all workers start from rank 0's

In this release a job keeps its members: an operation that fails without ending the session (a deadline, ranks that
disagree) takes training back to the last commit, and a member that is lost ends it with the error that names the
member.
"""

from byteps.elastic.run import run
from byteps.elastic.state import ObjectState, State

__all__ = ["ObjectState", "State", "run"]
