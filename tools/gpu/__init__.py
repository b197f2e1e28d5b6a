"""The parts of gpu_check, which `pack` takes along. They need Python 3.9, and some of them NumPy or PyTorch.

steps, plan     the steps of a run, each with a deadline; which there are
site            the packed wheel, made usable there
driver          a GPU by the driver's interface, without a framework
library         what a trainer asks of libbyteps, without a framework
copies          how fast the bus is: one way, both ways, two processes at once
values          a worker of a job whose results are checked;  torch_values: likewise, of PyTorch
rates           a worker of a job that is measured;  gloo: the same tensors by Gloo
nccl            which NCCL there is, and whether ranks may share a GPU
goals           the figures next to what they are to reach
machine         what the report says of the machine;  report: results.md
"""
