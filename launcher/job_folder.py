"""A private folder that lives as long as the job, or as its agent on a host; it holds the job's token.

A process of the launch removes it. If all of them are killed at once, the remover does, and kills what the workers have
started: a shell in a session of its own that reads from a pipe which they hold. If that is killed with them, the folder
goes when the same user starts the next launch on the host: no process holds its lock any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
import time
from collections.abc import Iterator

from .failure import LaunchError

# In this order, as tempfile has it, which takes longer to load than an agent has time.
_VARIABLES = ("TMPDIR", "TEMP", "TMP")
_PLACES = ("/tmp", "/var/tmp", "/usr/tmp")
_PREFIX = "bpslaunch-"
_NEW_SECONDS = 60.0  # so long after it was made a folder may not have its lock yet
# Its environment, not its command line, names the folder: `pkill -9 -f bpslaunch` does not find the remover. When we
# are killed, the kernel kills our children, but not what they have started, which has their environment. The remover
# looks again while it finds any, since one may start another meanwhile; what was just killed has no environment left.
_REMOVER = """\
trap "" HUP INT QUIT TERM
cd /
if ! read -r _; then
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    found=$(grep -lsF -- "BPSLAUNCH_FOLDER=$FOLDER" /proc/[0-9]*/environ) || [ -n "$found" ] || break
    for each in $found; do
      each=${each#/proc/}
      kill -KILL "${each%/environ}"
    done
  done
fi
exec rm -rf -- "$FOLDER"
"""
_REMOVER_SECONDS = 1.0  # for its end when it is told


class JobFolder:
    """`with JobFolder() as folder:`; readable by its owner alone, removed at the end."""

    def __init__(self, make: bool = True) -> None:
        """Without `make` it has only its name, which all processes of a launch know, whichever makes it. LaunchError
        where there is no place for temporary files."""
        self._place = _place()
        self._lock: int | None = None
        self.path = self._place / f"{_PREFIX}{os.urandom(8).hex()}"
        # By the first process of a launch: the others, where they end all that is below them, do not end it.
        self._remover: _Remover | None = None
        with contextlib.suppress(OSError, NotImplementedError):  # The next launch removes the folder then.
            self._remover = _Remover(self.path)
        if make:
            try:
                self.make()
            except LaunchError:
                self.remove()
                raise

    def __enter__(self) -> JobFolder:
        return self

    def __exit__(self, *_error: object) -> None:
        self.remove()

    def make(self) -> None:
        """Makes it, locked for as long as this process lives, or one that was forked from it; LaunchError if that
        cannot be. Removes those of launches that are gone."""
        with _refusing(self.path):
            self.path.mkdir(mode=0o700)
        self._lock = _lock(self.path)
        _remove_others(self._place)

    def remove(self) -> None:
        """May be called again, and by both processes of a launch."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._remover is not None:
            self._remover.end()
            self._remover = None

    def variables(self) -> dict[str, str]:
        """For all processes of the job: by these the remover knows them, and what they have started."""
        return {"BPSLAUNCH_FOLDER": str(self.path)}

    def write_token(self, token: str | None = None) -> pathlib.Path:
        """Writes the secret of this job, a new one by default; the file that holds it, mode 0600. LaunchError if that
        cannot be."""
        path = self.path / "token"
        with _refusing(path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w") as file:
                file.write((token or os.urandom(32).hex()) + "\n")
        return path


class _Remover:
    """A process that removes a folder when it is told; or, with what is left of its job, when this process and those
    that were forked from it have ended. OSError or NotImplementedError where it cannot be started."""

    def __init__(self, path: pathlib.Path) -> None:
        reader, self._writer = os.pipe()  # Neither is inherited by programs that are started.
        try:
            self._pid = os.posix_spawn(
                "/bin/sh",
                ["sh", "-c", _REMOVER],
                {**os.environ, "FOLDER": str(path)},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, reader, 0),
                    # A caller who waits for the end of our output does not wait for it.
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
            )
        except BaseException:
            os.close(self._writer)
            raise
        finally:
            os.close(reader)

    def end(self) -> None:
        """Tells it; waits for its end where this process started it, so that no process is left either."""
        with contextlib.suppress(OSError):  # It was killed.
            os.write(self._writer, b"\n")
        os.close(self._writer)
        deadline = time.monotonic() + _REMOVER_SECONDS
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self._pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
                time.sleep(0.001)


def _lock(path: pathlib.Path) -> int | None:
    """The open file that holds the lock; None: another process holds it, or this file system has no locks."""
    descriptor = None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        return None
    return descriptor


def _remove_others(place: pathlib.Path) -> None:
    """Removes our folders there that no process holds."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if not entry.name.startswith(_PREFIX):
                continue
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                if found.st_uid != os.geteuid() or time.time() - found.st_mtime < _NEW_SECONDS:
                    continue
                descriptor = _lock(place / entry.name)
                if descriptor is not None:
                    shutil.rmtree(entry.path, ignore_errors=True)
                    os.close(descriptor)


def _place() -> pathlib.Path:
    places = [os.environ[name] for name in _VARIABLES if os.environ.get(name)]
    places += [place for place in _PLACES if place not in places]
    for place in places:
        if os.access(place, os.W_OK | os.X_OK) and os.path.isdir(place):  # noqa: PTH112
            return pathlib.Path(place).absolute()
    raise LaunchError(f"no folder for temporary files in {', '.join(places)}: name one that can be written by TMPDIR")


@contextlib.contextmanager
def _refusing(path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror}; name another place by TMPDIR") from None
