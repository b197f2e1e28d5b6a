"""A worker whose tensors are PyTorch's, on a GPU: push_pull, broadcast, and training that is the same on all ranks.

    bpslaunch --workers 2 -- python3 -m gpu.torch_values [--cpu]

Ends with 77 where PyTorch has no CUDA, but with --cpu, which is for tests. PYTORCH_CUDA_ALLOC_CONF says how its memory
is made.
"""

from __future__ import annotations

import sys

NOT_RUN = 77


def main() -> int:
    try:
        import torch
    except ImportError as error:
        print(f"not run: no PyTorch: {error}")
        return NOT_RUN
    on_gpu = "--cpu" not in sys.argv
    if on_gpu and not torch.cuda.is_available():
        print("not run: PyTorch has no CUDA here")
        return NOT_RUN
    import byteps.torch as bps
    from byteps import Max, Min

    bps.init()
    rank, size = bps.rank(), bps.size()
    device = torch.device("cpu")
    if on_gpu:
        device = torch.device("cuda", bps.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
    side = torch.cuda.Stream() if on_gpu else None
    # The last one spans pieces of an expandable segment.
    for count in (1, 257, 100_003, 8_000_001) if on_gpu else (1, 257, 100_003):
        for turn in range(20):
            numbers = torch.arange(count, device=device) % 1000
            with torch.cuda.stream(side if turn % 2 else None):
                if side is not None and turn % 2:
                    side.wait_stream(torch.cuda.default_stream())
                mine = numbers.to(torch.float32) + rank + turn
                summed = bps.push_pull(mine, average=False, name=f"t.{count}")
                right = size * (numbers.to(torch.float32) + turn) + size * (size - 1) // 2
                assert torch.equal(summed, right), f"{count} elements, round {turn}: {summed} is not {right}"
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(device)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = bps.DistributedOptimizer(sgd, named_parameters=model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range(50):
        generator = torch.Generator(device=device).manual_seed(1000 * rank + step)
        inputs = torch.randn(32, 64, device=device, generator=generator)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    least = bps.allreduce(flat, op=Min, name="least")
    most = bps.allreduce(flat, op=Max, name="most")
    assert torch.equal(least, most), "the ranks' parameters differ after 50 steps"
    assert bool(torch.isfinite(flat).all()), "parameters are not finite after 50 steps"
    print(f"rank {rank} on {device}: right, PyTorch {torch.__version__}, loss {loss.item():.3f}")
    bps.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
