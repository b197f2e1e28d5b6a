"""Training that survives a failed operation: state that is committed, restored and shared.

    state = byteps.torch.elastic.TorchState(model, optimizer, batch=0, epoch=0)

    @byteps.torch.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, epochs):
            ...
            state.commit()

    train(state)

The names are those of Horovod's horovod.torch.elastic. In this release a job keeps its members: an operation that fails
without ending the session (a deadline, ranks that disagree) takes training back to the last commit, and a member that
is lost ends it with the error that names the member.
"""

from byteps.elastic import ObjectState, State, run
from byteps.torch.elastic.sampler import ElasticSampler
from byteps.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]
