"""MXNet's engine as a follower of the session: what was pushed in a session runs in that session."""

from __future__ import annotations

from byteps import _native
from byteps.session import CURRENT

import mxnet as mx


class _Engine:
    """Of byteps.session.Follower."""

    def attach(self, native: _native.Session) -> None:
        """Nothing: kernels use the shim."""

    def leave(self) -> None:
        """Runs what was pushed. Raises MXNetError for an operation that failed and that was not waited for."""
        mx.nd.waitall()

    def joined(self, native: _native.Session) -> None:
        """Nothing: kernels use the shim."""

    def detach(self, native: _native.Session) -> None:
        """Nothing: kernels use the shim."""


CURRENT.follow(_Engine())
