"""bps_perf - how fast push_pull is: what nccl-tests is to NCCL (--help; docs/tools.md).

The same program is the launcher, as its user calls it, and a worker of the job, as bpslaunch calls it. Its parts are in
tools/perf.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from perf import chart
from perf.arguments import parse
from perf.launch import launch


def main() -> int:
    words = sys.argv[1:]
    inside = os.environ.get("DMLC_ROLE") == "worker"
    arguments = parse(words, inside)
    # Of a job's workers only the first one draws, maybe on another host.
    obstacle = chart.why_not(arguments.plot, here=not inside) if arguments.plot is not None else ""
    if obstacle:
        print(f"bps_perf: {obstacle}", file=sys.stderr)
        return 2
    if not inside:
        return launch(Path(__file__).resolve(), arguments, words)
    # Only workers load the framework.
    if arguments.model is not None:
        from perf.steps import replay_all

        return replay_all(arguments)
    from perf.rows import measure_all

    return measure_all(arguments)


if __name__ == "__main__":
    sys.exit(main())
