"""A folder that all hosts of a job see: the exchange where a launcher offers nothing better."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import tempfile
from collections.abc import Mapping

from ..failure import LaunchError


def rendezvous_folder(variables: Mapping[str, str], job: str) -> pathlib.Path:
    """Where the processes of a job meet, which its launcher calls so."""
    above = pathlib.Path(variables.get("BYTEPS_RENDEZVOUS_DIR") or os.path.expanduser("~/.byteps"))  # noqa: PTH111
    return above / re.sub(r"[^\w.@-]", "_", job)


class SharedFolder:
    """See exchange.Lasting. Readable by its owner alone: the job's token goes through it."""

    def __init__(self, path: pathlib.Path, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._path = path

    def open(self, deadline: float) -> None:
        """Does nothing: the first that writes makes the folder."""

    def set(self, key: str, value: str) -> None:
        """Replaces the value of a key, at once for each reader."""
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self._path)  # of mode 0600
            with open(descriptor, "w") as file:
                file.write(value)
            os.replace(name, self._path / key)  # noqa: PTH105
        except OSError as error:
            raise LaunchError(f"{self._path}: {error.strerror}; name another folder by BYTEPS_RENDEZVOUS_DIR") from None

    def get(self, key: str) -> str | None:
        """The value of a key, or None."""
        try:
            # Opening the folder makes a network file system ask for its newest state.
            with contextlib.suppress(OSError):
                os.listdir(self._path)  # noqa: PTH208
            return (self._path / key).read_text() or None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LaunchError(f"{self._path / key}: {error.strerror}") from None

    def remove(self, key: str) -> None:
        """Removes a key, and the folder with the last one."""
        with contextlib.suppress(OSError):
            (self._path / key).unlink(missing_ok=True)
            self._path.rmdir()

    def close(self) -> None:
        """Rank 0, whom the others have asked, removes all."""
        if self.rank == 0:
            with contextlib.suppress(OSError):
                for file in self._path.iterdir():
                    file.unlink()
                self._path.rmdir()
