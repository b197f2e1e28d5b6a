"""How fast a network trains on made-up images, in MXNet's Gluon, with the flags of BytePS's synthetic benchmarks.

    bpslaunch --workers 2 -- python examples/mxnet/synthetic_benchmark.py --model squeezenet1.1 --batch-size 8

Reports images per second of each worker and of all, with the interval of confidence over the iterations.
"""

import argparse
import time

import byteps.mxnet as bps
import mxnet as mx
import numpy as np
from mxnet.gluon.model_zoo import vision


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fp16-pushpull", "--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--model", default="resnet50_v1", help="a model of mxnet.gluon.model_zoo.vision")
    parser.add_argument("--batch-size", type=int, default=32, help="images of each worker per step")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--num-classes", type=int, default=1000)
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    parser.add_argument("--no-cuda", action="store_true", help="accepted: this runs on processors in any case")
    args = parser.parse_args()

    bps.init()
    net = vision.get_model(args.model, classes=args.num_classes)
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True)
    shape = (args.batch_size, 3, args.image_size, args.image_size)
    images = mx.nd.random.normal(shape=shape)
    labels = mx.nd.array(np.random.default_rng(bps.rank()).integers(0, args.num_classes, args.batch_size))
    criterion = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = bps.DistributedTrainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": 0.01},
        compression_params={"fp16": args.fp16_pushpull},
    )

    def run(batches: int) -> float:
        """Images per second of this worker."""
        start = time.perf_counter()
        for _ in range(batches):
            with mx.autograd.record():
                loss = criterion(net(images), labels)
            loss.backward()
            trainer.step(args.batch_size)
        mx.nd.waitall()
        return args.batch_size * batches / (time.perf_counter() - start)

    def log(text: str) -> None:
        if bps.rank() == 0:
            print(text, flush=True)

    log(f"Model: {args.model}")
    log(f"Batch size: {args.batch_size}")
    log(f"Number of workers: {bps.size()}")
    log("Running warmup...")
    run(args.num_warmup_batches)
    log("Running benchmark...")
    speeds = []
    for number in range(args.num_iters):
        speeds.append(run(args.num_batches_per_iter))
        log(f"Iter #{number}: {speeds[-1]:.1f} img/sec per worker")
    mean, spread = float(np.mean(speeds)), float(1.96 * np.std(speeds))
    log(f"Img/sec per worker: {mean:.1f} +-{spread:.1f}")
    log(f"Total img/sec on {bps.size()} worker(s): {bps.size() * mean:.1f} +-{bps.size() * spread:.1f}")
    bps.shutdown()


if __name__ == "__main__":
    main()
