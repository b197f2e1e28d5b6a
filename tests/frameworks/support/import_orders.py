"""Whether it matters which of two is imported first, a framework or byteps. Frameworks bring protobuf and other
libraries along, some of them for the whole process.

    @pytest.mark.parametrize("order", ORDERS)
    def test_order(order):
        run_order(order, "import jax", "import byteps.jax as bps", USE)
"""

from __future__ import annotations

import subprocess
import sys

from jobs import DEADLINE, clean_environment, launcher_command

ORDERS = ["framework first", "byteps first", "byteps lived before"]


def run_code(code: str, workers: int = 1) -> subprocess.CompletedProcess[str]:
    """A program, in a job if it has several workers."""
    launcher = launcher_command(workers, 1) if workers > 1 else []
    return subprocess.run(
        [*launcher, sys.executable, "-c", code],
        env=clean_environment(TF_CPP_MIN_LOG_LEVEL="2"),
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


def run_order(order: str, framework: str, binding: str, use: str) -> None:
    """Imports both in this order, and runs `use` between init() and shutdown(). Raises AssertionError."""
    first = {
        "framework first": [framework, "import byteps", "byteps.init()"],
        "byteps first": ["import byteps", "byteps.init()", framework],
        "byteps lived before": ["import byteps", "byteps.init()", "byteps.shutdown()", framework, "byteps.init()"],
    }[order]
    # A session that others have left cannot be joined again: that order has no others.
    done = run_code("\n".join([*first, binding, use, "bps.shutdown()"]), workers=1 if "lived" in order else 2)
    assert done.returncode == 0, done.stdout + done.stderr


def import_warning(framework: str, new: str, binding: str) -> str:
    """What the import of the binding warns of where the framework has the version that `new` gives it."""
    done = run_code(f"{framework}\n{new}\n{binding}\nprint('imported')")
    assert done.returncode == 0 and "imported" in done.stdout, done.stdout + done.stderr
    return done.stderr


def import_error(framework: str, old: str, binding: str) -> str:
    """What the import of the binding says where the framework has the version that `old` gives it."""
    code = f"{framework}\n{old}\ntry:\n    {binding}\nexcept ImportError as error:\n    print('refused:', error)"
    done = run_code(code)
    assert done.returncode == 0 and "refused:" in done.stdout, done.stdout + done.stderr
    return done.stdout
