"""Builds what a later step needs while another one waits for its own processes.

    with BackgroundBuild([(["//core/..."], ["asan", "ubsan"])], root, log):
        ...                                  # does not use Bazel itself

On leaving, what is not built yet is left to that later step; so is the report of what cannot be built.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

# Seconds that Bazel has to stop after it was asked to: it waits for the compilation under way.
PATIENCE = 120


class BackgroundBuild:
    """Several `bazel build`, one after the other, one compilation at a time: the other cores are the other step's.

    Args:
        builds: what to build, as (labels, configurations)
        root: the workspace
        log: file that takes the output

    Threads: one of its own, until it is left.
    """

    def __init__(self, builds: Sequence[tuple[Sequence[str], Sequence[str]]], root: Path, log: Path) -> None:
        # No links: tests look for programs of the default build under bazel-bin.
        flags = ["--jobs=1", "--keep_going", "--symlink_prefix=/", "--color=no", "--noshow_progress"]
        self._commands = [
            ["bazel", "build", *flags, *(f"--config={config}" for config in configs), *labels]
            for labels, configs in builds
            if labels
        ]
        self._root = root
        self._log = log
        self._lock = threading.Lock()
        self._stopping = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="background build")

    def __enter__(self) -> BackgroundBuild:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stopping = True
            process = self._process
        if process is not None and process.poll() is None:
            # The client asks its server to stop, and ends when it has.
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join()

    def _run(self) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            for command in self._commands:
                with self._lock:
                    if self._stopping:
                        return
                    # Ctrl-C in the terminal reaches the runner alone, which then leaves and stops this one.
                    self._process = subprocess.Popen(
                        command,
                        cwd=self._root,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                    process = self._process
                process.wait()
