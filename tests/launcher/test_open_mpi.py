"""Ranks of Open MPI where the library of PMIx does not load: they meet in a folder. test_mpi.py has the real mpirun."""

from __future__ import annotations

import pathlib
import re
import time

import pytest

from launcher.environments import open_mpi
from launcher.failure import LaunchError


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> dict[str, str]:
    """Of rank 0 of two."""

    def fail(_variables: dict[str, str]) -> None:
        raise LaunchError("libpmix.so.2 does not load: it is not here")

    monkeypatch.setattr(open_mpi, "load", fail)
    named = {"PMIX_NAMESPACE": "slurm.pmix.7.0", "PMIX_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    return {**named, "BYTEPS_RENDEZVOUS_DIR": str(tmp_path)}


def failure(variables: dict[str, str]) -> str:
    """Of a rank that waits for the other one in vain."""
    surroundings = open_mpi.detect(variables)
    assert surroundings is not None
    with pytest.raises(LaunchError) as error:
        surroundings.exchange.meet({}, lambda given: given, time.monotonic() + 0.1)
    return str(error.value)


@pytest.mark.parametrize("rank, why", [("0", "missing are ranks 1"), ("1", "rank 0 has not answered")])
def test_a_folder_that_is_not_shared(variables: dict[str, str], tmp_path: pathlib.Path, rank: str, why: str) -> None:
    text = failure({**variables, "PMIX_RANK": rank})
    assert why in text and f"they meet in {tmp_path}/pmix-slurm.pmix.7.0" in text, text
    assert text.endswith("libpmix.so.2 does not load: it is not here")


def test_a_requeued_job_has_another_folder(variables: dict[str, str]) -> None:
    """The namespace is that of the first attempt, which may have left its folder behind."""
    texts = [failure({**variables, **restart}) for restart in ({}, {"SLURM_RESTART_COUNT": "1"})]
    first, again = (re.findall(r"they meet in (\S+?),? ", text) for text in texts)
    assert len(first) == len(again) == 1 and first != again
