"""BytePS for TensorFlow.

    import byteps.tensorflow as bps

    bps.init()
    with bps.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = ...
    gradients = tape.gradient(loss, model.trainable_variables)

Start it with `bpslaunch --workers 2 -- python train.py`; examples/tensorflow/digits.py is a whole one.
"""

import byteps as _byteps
from byteps import *  # noqa: F403 - what all frameworks share: init, rank, size, the errors, the reductions ...
from byteps import __version__
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.ops import broadcast, grouped_push_pull, push_pull

__all__ = [
    *_byteps.__all__,
    "Compression",
    "__version__",
    "broadcast",
    "grouped_push_pull",
    "push_pull",
]
