"""A picture of the rows: time and rate over the size of the tensor, next to the peers.

    draw(rows, Path("out.png"))

It is drawn by matplotlib, which BytePS does not need otherwise.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from .row import Row, percentile


def why_not() -> str:
    """What keeps us from drawing, in one sentence; "" if nothing does."""
    if importlib.util.find_spec("matplotlib") is not None:
        return ""
    return "--plot draws with matplotlib, which is not installed: pip install matplotlib (or byteps[plot])"


def draw(rows: Sequence[Row], path: Path) -> None:
    """The ending of the name says the form: .png, .svg, .pdf. ValueError names what it cannot be."""
    import matplotlib

    matplotlib.use("Agg")  # no screen
    from matplotlib import pyplot

    figure, (times, rates) = pyplot.subplots(1, 2, figsize=(12, 5), layout="constrained")
    sizes = [row.size for row in rows]
    per_round = [row.bytes_per_round for row in rows]
    lines = {"push_pull": [row.seconds for row in rows]}
    for name in rows[0].peers:
        lines[name] = [row.peers[name] for row in rows]
    for name, seconds in lines.items():
        times.plot(sizes, [each * 1e6 for each in seconds], marker="o", label=name)
        rates.plot(sizes, [each / 1e9 / took for each, took in zip(per_round, seconds)], marker="o", label=name)
    if rows[0].settings.mode == "latency":
        low, high = ([percentile(row.samples, percent) * 1e6 for row in rows] for percent in (10, 90))
        times.fill_between(sizes, low, high, alpha=0.2, label="push_pull, p10 to p90")
    for axes, what in ((times, "microseconds of a round"), (rates, "GB/s of tensor")):
        axes.set(xscale="log", yscale="log", xlabel="bytes of a tensor", ylabel=what)
        axes.grid(True, which="both", alpha=0.3)
        axes.legend()
    figure.suptitle(rows[0].settings.title(), fontsize="medium")
    figure.savefig(path)
    pyplot.close(figure)
