"""Pictures: time and rate over the size of the tensor, or the steps of a model, next to the peers.

    obstacle = why_not(Path("out.png"))                       # before anything is measured
    draw(rows, Path("out.png"))
    draw_steps("vgg16, 2 workers", 0.1, steps, Path("steps.png"))

They are drawn by matplotlib, which BytePS does not need otherwise.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .row import Row, percentile

_FORMS = (".png", ".svg", ".pdf")
# A tick at each size, if they can be read side by side.
_MOST_TICKS = 12


@dataclasses.dataclass(frozen=True)
class Steps:
    """What one scheduler, or a peer, has made of a model's steps."""

    by: str
    seconds: list[float]
    bound: float | None  # the least possible, where links have a known rate


def why_not(path: Path, here: bool = True) -> str:
    """What keeps us from drawing there, in one sentence; "" if nothing does. `here`: on this host, for sure."""
    if importlib.util.find_spec("matplotlib") is None:
        return "--plot draws with matplotlib, which is not installed: pip install matplotlib (or byteps[plot])"
    if path.suffix.lower() not in _FORMS:
        return f"--plot {path}: the name must end with one of {', '.join(_FORMS)}, which says what is drawn"
    if here and not path.absolute().parent.is_dir():
        return f"--plot {path}: there is no folder {path.absolute().parent}"
    return ""


def _size(size: float, _: object = None) -> str:
    """4 B, 64 KiB, 100 MB: as sizes are given."""
    for unit, name in ((1 << 30, "GiB"), (10**9, "GB"), (1 << 20, "MiB"), (10**6, "MB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size / unit:.0f} {name}"
    return f"{size:.0f} B"


def _number(value: float, _: object = None) -> str:
    """0.02, 5, 2000, 2e+06."""
    return f"{value:g}"


def _scale(axis: Any, values: Sequence[float]) -> None:
    """Ticks of a logarithmic axis that people can read, also where it spans a part of a decade."""
    from matplotlib import ticker

    span = max(values) / min(values)
    axis.set_major_locator(ticker.LogLocator(subs=(1.0,) if span > 1000 else (1.0, 2.0, 5.0), numticks=20))
    axis.set_major_formatter(ticker.FuncFormatter(_number))
    axis.set_minor_formatter(ticker.NullFormatter())


def _new_figure(columns: int, width: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")  # no screen
    from matplotlib import pyplot

    return pyplot.subplots(1, columns, figsize=(width, 5), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    try:
        figure.savefig(path)
    except OSError as error:
        raise SystemExit(f"bps_perf: --plot {path}: {error.strerror}") from None
    finally:
        pyplot.close(figure)


def draw(rows: Sequence[Row], path: Path) -> None:
    """The ending of the name says the form (why_not)."""
    from matplotlib import ticker

    rows = sorted(rows, key=lambda row: row.size)
    figure, (times, rates) = _new_figure(2, 12)
    sizes = [row.size for row in rows]
    lines = {"push_pull": [row.seconds for row in rows]}
    for name in rows[0].peers:
        lines[name] = [row.peers[name] for row in rows]
    drawn: dict[str, list[list[float]]] = {"times": [], "rates": []}
    for name, seconds in lines.items():
        drawn["times"].append([each * 1e6 for each in seconds])
        drawn["rates"].append([row.bytes_per_round / 1e9 / took for row, took in zip(rows, seconds)])
        times.plot(sizes, drawn["times"][-1], marker="o", label=name)
        rates.plot(sizes, drawn["rates"][-1], marker="o", label=name)
    if rows[0].settings.mode == "latency":
        low, high = ([percentile(row.samples, percent) * 1e6 for row in rows] for percent in (10, 90))
        label = "push_pull, 10th to 90th percentile"
        if len(rows) > 1:
            times.fill_between(sizes, low, high, alpha=0.2, label=label)
        else:  # a band of one size has no width
            times.vlines(sizes, low, high, alpha=0.4, linewidth=6, label=label)
        drawn["times"] += [low, high]
    for axes, what, values in (
        (times, "time of a round, µs", drawn["times"]),
        (rates, "rate, GB of tensors per second", drawn["rates"]),
    ):
        axes.set(xscale="log", yscale="log", xlabel="size of a tensor", ylabel=what)
        _scale(axes.yaxis, [value for line in values for value in line])
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(_size))
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        if len(sizes) <= _MOST_TICKS:
            axes.set_xticks(sizes)
        axes.tick_params(axis="x", rotation=30)
        axes.grid(True, which="both", alpha=0.3)
        axes.legend()
    figure.suptitle(rows[0].settings.title(), fontsize="medium")
    _save(figure, path)


def draw_steps(title: str, computation: float, steps: Sequence[Steps], path: Path) -> None:
    """A bar for each: the median, with every step as a dot. `computation`: seconds of a step without any transfer."""
    figure, axes = _new_figure(1, max(6.0, 2.0 + 1.2 * len(steps)))
    places = range(len(steps))
    axes.bar(
        places, [statistics.median(each.seconds) for each in steps], width=0.6, alpha=0.6, label="median of a step"
    )
    axes.plot(
        *zip(*((place, second) for place, each in zip(places, steps) for second in each.seconds)),
        *("k.",),
        alpha=0.5,
        label="each step",
    )
    axes.axhline(computation, color="tab:gray", linestyle="--", label="computation alone")
    bounds = [(place, each.bound) for place, each in zip(places, steps) if each.bound is not None]
    if bounds:
        middle, least = zip(*bounds)
        left, right = ([place + side for place in middle] for side in (-0.35, 0.35))
        axes.hlines(least, left, right, color="tab:red", label="least possible on these links")
    axes.set(xlabel="scheduled by", ylabel="time of a step, s")
    axes.set_xticks(list(places), [each.by for each in steps])
    axes.set_ylim(bottom=0)
    axes.margins(y=0.15)
    axes.grid(True, axis="y", alpha=0.3)
    figure.legend(fontsize="small", loc="outside lower center", ncols=2)
    figure.suptitle(title, fontsize="medium")
    _save(figure, path)
