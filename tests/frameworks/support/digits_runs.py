"""The digits example of any language: how it is run, and what it must have said."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jobs import launcher_command, output_of

# What examples/torch/digits.py reaches on the same test images is 0.983; one image is 0.003.
LEAST_ACCURACY = 0.97


def check_digits(program: Sequence[str], workers: int, servers: int) -> None:
    """Runs the program as a job (or alone, as one worker) and checks that it has learnt, and says on what it ran."""
    launcher = launcher_command(workers, servers) if workers > 1 else []
    output = output_of([*launcher, *program])
    assert len(re.findall(r"epoch +\d+/\d+  loss \d\.\d+  test accuracy \d\.\d+  \d+ samples/s", output)) >= 5, output
    summary = re.search(
        r"digits: test accuracy (\S+) in \S+ s, (\d+) workers, (\d+) servers, transport .+, scheduler .+\n$", output
    )
    assert summary is not None, output
    assert float(summary[1]) >= LEAST_ACCURACY, output
    assert (int(summary[2]), int(summary[3])) == (workers, servers)
