"""Which worker is who, from what the workers have said: without a cluster."""

from __future__ import annotations

import pytest

pytest.importorskip("ray", reason="ray is not installed")

from byteps.launcher.host_identity import this_host
from byteps.ray.places import Report, plan


def visible(*reports: Report) -> list[str | None]:
    """CUDA_VISIBLE_DEVICES by rank."""
    return [place.get("CUDA_VISIBLE_DEVICES") for place in plan(reports, None).places]


def at(host: str, *gpus: str) -> Report:
    return Report(host, ["10.0.0.1/24" if host == "a" else "10.0.0.2/24"], {}, list(gpus))


def test_a_worker_sees_the_gpus_of_its_host() -> None:
    assert visible(at("a", "3"), at("b", "0"), at("a", "1")) == ["3,1", "3,1", "0"]


def test_the_local_rank_is_the_number_of_the_first_gpu_of_several() -> None:
    assert visible(at("a", "2", "3"), at("a", "0", "1")) == ["2,0,3,1"] * 2


def test_what_ray_has_set_stays() -> None:
    """Of workers without GPUs; and of containers of one host in each of which the same number is another GPU."""
    assert visible(at("a"), at("a")) == [None, None]
    assert visible(at("a", "0"), at("a", "0"), at("b", "0")) == [None, None, "0"]


def test_a_host_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's own name is no address of it."""
    monkeypatch.setattr("socket.gethostbyname", lambda _name: "10.9.9.9")
    far = Report("node7 1234 net:[1]", [], {})
    other = Report("node8 1234 net:[1]", ["10.0.0.2/24"], {})
    with pytest.raises(RuntimeError, match=r"host node7: no IPv4 address.*DMLC_INTERFACE"):
        plan([far, other], None)
    here = Report(this_host(), [], {})
    assert plan([here, other], None).address == "10.9.9.9"
