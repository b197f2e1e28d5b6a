"""Bindings without asynchronous training refuse a job that asks for it."""

from __future__ import annotations

import byteps
import pytest
from byteps.asynchronous import asynchronous_training, refuse_asynchronous


@pytest.mark.parametrize("value", ["1", "true", " Yes", "on"])
def test_it_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("BYTEPS_ENABLE_ASYNC", value)
    assert asynchronous_training()
    with pytest.raises(byteps.UnimplementedError, match=r"BYTEPS_ENABLE_ASYNC=1, but the thing has no asynchronous"):
        refuse_asynchronous("the thing")


@pytest.mark.parametrize("value", [None, "", "0", "no", "off", "false"])
def test_it_is_not_asked_for(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("BYTEPS_ENABLE_ASYNC", raising=False)
    if value is not None:
        monkeypatch.setenv("BYTEPS_ENABLE_ASYNC", value)
    assert not asynchronous_training()
    refuse_asynchronous("the thing")
