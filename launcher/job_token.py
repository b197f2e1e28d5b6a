"""The job's secret, where one process gives it to all others."""

from __future__ import annotations

import os
import pathlib

from .environment import Environment
from .failure import LaunchError


def token_of(environment: Environment) -> str:
    """The user's, of BYTEPS_JOB_TOKEN or BYTEPS_JOB_TOKEN_FILE, or a new one. LaunchError if there is none in the file,
    or if both are set."""
    token, path = environment.text("BYTEPS_JOB_TOKEN"), environment.text("BYTEPS_JOB_TOKEN_FILE")
    if path is None:
        return token or os.urandom(32).hex()
    if token is not None:
        raise LaunchError("BYTEPS_JOB_TOKEN and BYTEPS_JOB_TOKEN_FILE are both set: leave one of them out")
    try:
        token = pathlib.Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"BYTEPS_JOB_TOKEN_FILE={path}: {getattr(error, 'strerror', None) or error}") from None
    if not token:
        raise LaunchError(f"BYTEPS_JOB_TOKEN_FILE={path} is empty")
    return token


def token_variables(token: str) -> dict[str, str]:
    """The variables that give it to a process. A file that the process was told to read counts no more: both together
    are an error, and an empty variable is none."""
    return {"BYTEPS_JOB_TOKEN": token, "BYTEPS_JOB_TOKEN_FILE": ""}
