"""torch.set_default_device(): where a program's new tensors are is no matter of ours. On "meta" none has memory, so one
of BytePS's own that goes there is seen without a GPU, too."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import byteps.torch as bps
from byteps.torch.parallel import DistributedDataParallel
from jobs import Outcomes
from torch import nn


def _collectives() -> None:
    bps.init()
    rank, size = bps.rank(), bps.size()
    strided = torch.arange(6.0, device="cpu").view(2, 3).t()
    total = bps.push_pull(strided, average=False, name="strided")
    assert torch.equal(total, size * strided)
    assert bps.push_pull(bps.empty(3), name="own").tolist() == [0.0] * 3
    assert bps.empty(0).is_cpu
    assert bps.allgather(torch.empty(0, 2, device="cpu")).shape == (0, 2)
    received, rows = bps.alltoall(torch.empty(0, device="cpu"), torch.tensor([0] * size, device="cpu"))
    assert received.is_cpu and rows.tolist() == [0] * size
    indices = torch.tensor([[rank], [0]], device="cpu")
    sparse = torch.sparse_coo_tensor(indices, torch.ones(1, device="cpu"), (size, 2), device="cpu")
    found = bps.synchronize(bps.sparse_allreduce_async(sparse, name="sparse", op=bps.Sum))
    assert found.to_dense().tolist() == [[1.0, 0.0]] * size
    nothing = torch.sparse_coo_tensor(
        torch.empty(1, 0, dtype=torch.int64, device="cpu"), torch.empty(0, device="cpu"), (4,), device="cpu"
    )
    assert bps.synchronize(bps.sparse_allreduce_async(nothing, name="nothing"))._nnz() == 0


class _Model(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        with torch.device("cpu"):
            self.rows = nn.Embedding(5, 3, sparse=sparse)
            self.head = nn.Linear(3, 2)

    def forward(self, which: torch.Tensor) -> torch.Tensor:
        return self.head(self.rows(which))


def _training() -> None:
    bps.init()
    rank = bps.rank()
    for sparse in (True, False):
        model = _Model(sparse)
        own = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.0 if sparse else 0.9)
        optimizer = bps.DistributedOptimizer(own, model.named_parameters(prefix=f"sparse={sparse}"))
        bps.broadcast_parameters(model.state_dict())
        bps.broadcast_optimizer_state(optimizer, model=model)
        model(torch.tensor([rank], device="cpu")).sum().backward()
        optimizer.step()
        assert torch.equal(bps.broadcast(model.rows.weight.detach(), 0), model.rows.weight)
        wrapped = DistributedDataParallel(_Model(False), find_unused_parameters=True)
        wrapped(torch.tensor([rank], device="cpu")).sum().backward()
        assert wrapped.module.head.bias.grad.tolist() == [1.0] * 2


def _on_meta(body: Callable[[], None]) -> None:
    torch.set_default_device("meta")
    try:
        body()
    finally:
        torch.set_default_device("cpu")


def _collectives_on_meta() -> None:
    _on_meta(_collectives)


def _training_on_meta() -> None:
    _on_meta(_training)


BODIES = [_collectives_on_meta, _training_on_meta]


@pytest.mark.parametrize("body", BODIES)
def test_it_is_not_followed(body: object, outcomes: Outcomes) -> None:
    outcomes.check(body)


_MAKERS = {"arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "randperm", "tensor"}
_MAKERS |= {"empty_strided", "scalar_tensor", "sparse_coo_tensor", "zeros"}


def _makes_where_it_likes(node: ast.AST) -> bool:
    """Whether it is torch.empty(...) and the like without `device`."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MAKERS):
        return False
    of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
    return of_torch and all(keyword.arg != "device" for keyword in node.keywords)


def test_each_new_tensor_names_its_device() -> None:
    """Of the paths for GPUs, too."""
    folder = Path(bps.__file__).parent
    found = [
        f"{file.relative_to(folder)}:{node.lineno}"
        for file in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if file.name != "check.py" and _makes_where_it_likes(node)
    ]
    assert found == []
