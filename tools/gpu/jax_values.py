"""A worker of JAX: programs whose operations are on the GPU, and results that are known.

bpslaunch --workers 2 -- python3 -m gpu.jax_values
"""

import byteps.jax as bps
import jax
import numpy as np

bps.init()
gpus = jax.devices("cuda")
gpu = gpus[bps.local_rank() % len(gpus)]
numbers = np.arange(1 << 20, dtype=np.float32) % 1000  # sums are exact


@jax.jit
def step(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return bps.push_pull(x * 2, average=False, name="x") + 1, bps.broadcast(x, 0, name="b")


for turn in range(10):
    total, first = step(jax.device_put(numbers + turn + bps.rank(), gpu))
    assert total.devices() == first.devices() == {gpu}
    ranks = bps.size() * (bps.size() - 1) // 2
    np.testing.assert_array_equal(total, 2 * (bps.size() * (numbers + turn) + ranks) + 1)
    np.testing.assert_array_equal(first, numbers + turn)
print("rank", bps.rank(), "on", gpu, "of JAX", jax.__version__)
bps.shutdown()
