"""A private folder that lives as long as the job; it holds the job's token."""

from __future__ import annotations

import os
import pathlib
import shutil


class JobFolder:
    """`with JobFolder() as folder:`; readable by its owner alone, removed at the end."""

    def __init__(self) -> None:
        import tempfile  # here: a job over several hosts has no such folder, and starts sooner

        self.path = pathlib.Path(tempfile.mkdtemp(prefix="bpslaunch-"))

    def __enter__(self) -> JobFolder:
        return self

    def __exit__(self, *_error: object) -> None:
        self.remove()

    def remove(self) -> None:
        """May be called again, and by both processes of a launch."""
        shutil.rmtree(self.path, ignore_errors=True)

    def write_token(self) -> pathlib.Path:
        """Makes up a secret for this job; the file that holds it, mode 0600."""
        path = self.path / "token"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w") as file:
            file.write(os.urandom(32).hex() + "\n")
        return path
