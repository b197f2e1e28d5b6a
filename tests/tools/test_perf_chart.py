"""What bps_perf draws: what the axes say, and that the points are the figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

REASON = "pictures are drawn by matplotlib, which is not installed here"
pytest.importorskip("matplotlib", reason=REASON)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from perf import chart
from perf.row import RoleTimes, Row, Settings


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures, as they were saved; they are saved, too."""
    figures: list[Any] = []
    save = chart._save

    def keep(figure: Any, path: Path) -> None:
        figure.canvas.draw()  # ticks have their texts only then
        figures.append(figure)
        save(figure, path)

    monkeypatch.setattr(chart, "_save", keep)
    return figures


def row(size: int, seconds: float, mode: str = "latency", tensors: int = 1) -> Row:
    settings = Settings(mode, 2, 1, "tcp", "credit", "float32", "sum", False, tensors)
    samples = [seconds * factor for factor in (0.5, 1, 4)]
    return Row(settings, size, 3, seconds, samples, RoleTimes(1, 1, 1), {"gloo": 2 * seconds})


def texts(labels: list[Any]) -> list[str]:
    return [label.get_text() for label in labels]


def test_times_and_rates(drawn: list[Any], tmp_path: Path) -> None:
    # In the order of the call; drawn by size.
    chart.draw([row(65536, 2e-4), row(4, 1e-5), row(100_000_000, 0.1)], tmp_path / "out.png")
    (figure,) = drawn
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    times, rates = figure.axes
    for axes in (times, rates):
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        assert axes.get_xlabel() == "size of a tensor"
        assert texts(axes.get_xticklabels()) == ["4 B", "64 KiB", "100 MB"]
    assert times.get_ylabel() == "time of a round, µs"
    assert rates.get_ylabel() == "rate, GB of tensors per second"
    assert texts(times.get_legend().get_texts()) == ["push_pull", "gloo", "push_pull, 10th to 90th percentile"]
    assert texts(rates.get_legend().get_texts()) == ["push_pull", "gloo"]
    ours, gloo = times.get_lines()
    assert list(ours.get_xdata()) == [4, 65536, 100_000_000]
    assert list(ours.get_ydata()) == pytest.approx([10, 200, 1e5])
    assert list(gloo.get_ydata()) == pytest.approx([20, 400, 2e5])
    assert list(rates.get_lines()[0].get_ydata()) == pytest.approx([4e-4, 0.32768, 1])


def test_many_tensors_at_once_count_in_the_rate(drawn: list[Any], tmp_path: Path) -> None:
    chart.draw([row(1000, 1e-3, "bandwidth", 4)], tmp_path / "out.svg")
    times, rates = drawn[0].axes
    assert list(rates.get_lines()[0].get_ydata()) == pytest.approx([0.004])
    # The percentiles of this mode are of single operations, not of rounds.
    assert texts(times.get_legend().get_texts()) == ["push_pull", "gloo"]


def test_one_size_has_a_bar_in_place_of_a_band(drawn: list[Any], tmp_path: Path) -> None:
    chart.draw([row(1000, 1e-3)], tmp_path / "out.pdf")
    times, _ = drawn[0].axes
    (bar,) = times.collections
    ((low, high),) = bar.get_segments()
    assert (low[1], high[1]) == (pytest.approx(500), pytest.approx(4000))


@pytest.mark.parametrize(("most", "some"), [(4e-5, ["10", "20", "50"]), (10.0, ["10", "100", "1000"])])
def test_ticks_can_be_read(drawn: list[Any], tmp_path: Path, most: float, some: list[str]) -> None:
    """Neither 4 x 10^1 nor nothing where the times span less than a decade."""
    chart.draw([row(4, 1e-5), row(1000, most)], tmp_path / "out.png")
    ticks = texts(drawn[0].axes[0].get_yticklabels())
    assert set(some) <= set(ticks) and all(float(tick) > 0 for tick in ticks)


def test_steps(drawn: list[Any], tmp_path: Path) -> None:
    steps = [chart.Steps("fifo", [0.2, 0.3, 0.1], 0.15), chart.Steps("gloo", [0.4], None)]
    chart.draw_steps("a model", 0.09, steps, tmp_path / "steps.png")
    (axes,) = drawn[0].axes
    assert axes.get_ylabel() == "time of a step, s"
    assert texts(axes.get_xticklabels()) == ["fifo", "gloo"]
    assert [bar.get_height() for bar in axes.patches] == [0.2, 0.4]
    dots, computation = axes.get_lines()
    assert list(dots.get_ydata()) == [0.2, 0.3, 0.1, 0.4]
    assert list(computation.get_ydata()) == [0.09, 0.09]
    (bounds,) = (each for each in axes.collections if each.get_label() == "least possible on these links")
    assert [segment[0][1] for segment in bounds.get_segments()] == [0.15]
    assert axes.get_ylim()[0] == 0


def test_a_folder_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--plot .*: Is a directory"):
        (tmp_path / "out.png").mkdir()
        chart.draw([row(4, 1e-5)], tmp_path / "out.png")
