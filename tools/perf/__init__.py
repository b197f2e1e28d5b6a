"""The parts of bps_perf.

arguments     the command line, and the page of --help
launch        starts the job; rows and steps are what its workers do
rows          a row for each size: measurement (rounds), workload (tensors), push_pull, row (figures), roles (CPU time)
medium        what carries the tensors in the end
peer          what it is measured against: gloo; stream with echo (plain sockets), pingpong (RDMA), fold (memory)
output        table, JSON, CSV; chart draws
steps         training steps: replay, with the tensors of model, next to bound
notices       what the library says of slow servers
"""
