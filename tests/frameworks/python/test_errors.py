"""Exceptions: kinds, codes, and that Horovod's users find theirs."""

from __future__ import annotations

import copy
import pickle

import byteps
import pytest
from byteps.errors import from_status


@pytest.mark.parametrize("code", list(byteps.StatusCode))
def test_every_code_is_an_error_that_knows_it(code: byteps.StatusCode) -> None:
    error = from_status(int(code), "what happened", True)
    assert isinstance(error, RuntimeError)
    assert error.code is code
    assert error.retryable is True
    assert str(error) == "what happened"


def test_a_code_of_a_later_library() -> None:
    error = from_status(77, "something new", False)
    assert type(error) is byteps.BytePSError
    assert error.code == 77


def test_what_callers_catch() -> None:
    assert isinstance(from_status(3, "", False), ValueError)
    assert isinstance(from_status(6, "", False), ValueError)
    assert isinstance(from_status(12, "", False), NotImplementedError)
    assert isinstance(from_status(14, "", False), byteps.UnavailableError)


def test_errors_travel_between_processes() -> None:
    error = from_status(4, "rank 1 did not come", True)
    for travelled in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(travelled) is byteps.DeadlineExceededError
        assert (str(travelled), travelled.code, travelled.retryable) == (str(error), error.code, error.retryable)
