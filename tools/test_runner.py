"""Runs every kind of test there is and adds up the results; tools/test is the way in.

Each step yields a `Count`. Bazel's and pytest's results are read from the JUnit files both write, so that a GoogleTest
case counts like a pytest case.

Once everything is built, the Python tests run beside the other steps: they wait for processes most of the time, and the
sanitizers' step compiles most of the time.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import framework_versions
from framework_environments import Environment, environments
from side_process import SideProcess, end, let_stop, stops_held_back

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".deps" / "results"
# Where the Python tests find the simulated GPU.
FAKE_GPU = RESULTS / "libbyteps_device_fake.so"
# And a driver and an NCCL whose GPUs are simulated (tests/tools/test_gpu_check.py), by their place in the tree.
STANDINS = RESULTS / "gpu_standins"
STANDIN_FILES = ("standin/libcuda.so.1", "nccl/lib/libnccl.so.2")

# C++ tests that also run under the sanitizers: those whose label carries this tag.
SANITIZER_TAG = "sanitize"
# Those among them in which nothing has a second thread: ThreadSanitizer has nothing to look at there.
ONE_THREAD_TAG = "one_thread"
# Those that libFuzzer can run as well.
FUZZ_TAG = "fuzz"

# When the sanitizers end, after the start: where nothing has been compiled yet, two slow cores need more than the hour
# and a half in which all is to have ended.
MINUTES = 65.0

# Folders whose Python tests run in a process of their own, beside that of all others: each has about half of the work.
SECOND_LANE = ("tests/frameworks/julia", "tests/frameworks/python", "tests/launcher", "tests/netlab", "tests/tools")


@dataclass
class Count:
    """Test cases of one step, and the names of those that failed, as far as they have one."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    names: tuple[str, ...] = ()

    def __add__(self, other: Count) -> Count:
        return Count(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
            self.names + other.names,
        )

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def count_junit(path: Path) -> Count:
    """The cases of a JUnit file, as GoogleTest, Bazel and pytest write it.

    A file that cannot be read is one failure: a test that died before it could write its results must not vanish.
    """
    count = Count()
    try:
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return Count(failed=1, names=(str(path),))
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            count += Count(failed=1, names=(f"{case.get('classname', '')}.{case.get('name', '')}".strip("."),))
        elif case.find("skipped") is not None or case.get("status") == "notrun" or case.get("result") == "suppressed":
            count.skipped += 1
        else:
            count.passed += 1
    return count


def run(command: Sequence[str], until: float = math.inf) -> int:
    """Runs a command with its output on ours, at most until then (time.monotonic); its exit status."""
    print("+ " + " ".join(command), flush=True)
    with ExitStack() as stack:
        with stops_held_back():
            process = subprocess.Popen(command, cwd=ROOT, preexec_fn=let_stop)
            # Bazel takes this like Ctrl-C, which it may have heard already: it stops its server's work, then it ends.
            stack.callback(end, process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            return process.wait(None if until == math.inf else max(0.0, until - time.monotonic()))
        end(process, signal.SIGTERM)
        return process.returncode


def shown_lines(command: Sequence[str]) -> Iterator[str]:
    """The lines a command prints, as they come and are shown; its errors go to ours. Raises CalledProcessError after
    the last one."""
    print("+ " + " ".join(command), flush=True)
    with ExitStack() as stack:
        with stops_held_back():
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace", preexec_fn=let_stop
            )
            stack.callback(end, process, signal.SIGTERM)
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            yield line.rstrip("\n")
        if process.wait() != 0:
            raise subprocess.CalledProcessError(process.returncode, command)


def output(command: Sequence[str]) -> list[str]:
    """The lines a command prints; its errors go to ours. Raises CalledProcessError."""
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines()


def bazel_tests(pattern: str | None, tag: str | None = None, without: Sequence[str] = ()) -> list[str]:
    """The labels of the Bazel tests that contain `pattern` and carry `tag`, but for those that ask for what is not
    everywhere ("manual") and those that carry a tag of `without`."""
    query = "tests(//...)" if tag is None else f'attr(tags, "\\b{tag}\\b", tests(//...))'
    for other in ("manual", *without):
        query += f' except attr(tags, "\\b{other}\\b", tests(//...))'
    labels = output(["bazel", "query", "--noshow_progress", query])
    return sorted(label for label in labels if pattern is None or pattern in label)


def result_files(logs: Path) -> list[Path]:
    """The JUnit files of one Bazel test; a sharded test has one for each shard, all of the same number."""
    if (logs / "test.xml").exists():
        return [logs / "test.xml"]
    shards = sorted(path for path in logs.glob("shard_*_of_*") if path.is_dir())
    if not shards:
        return []
    # An earlier run may have had another number of shards: the newest says how many there are.
    newest = max(shards, key=lambda path: path.stat().st_mtime).name.rsplit("_of_", 1)[1]
    return [path / "test.xml" for path in shards if path.name.endswith(f"_of_{newest}")]


def bazel_flags(configs: Sequence[str]) -> list[str]:
    """What every build and test in these configurations of .bazelrc is called with."""
    flags = [*(f"--config={config}" for config in configs), "--show_progress_rate_limit=10"]
    # What is under bazel-bin stays the default build.
    return [*flags, *(["--symlink_prefix=/"] if configs else [])]


def run_bazel(
    labels: list[str], configs: Sequence[str] = (), more: Sequence[str] = (), until: float = math.inf
) -> Count:
    """Runs Bazel tests and counts their cases; a test that did not build or run is one failure. `more`: flags.

    A test that has not run `until` then is skipped, and named.
    """
    flags = [*bazel_flags(configs), *more]
    if not labels:
        return Count()
    if time.monotonic() >= until:
        print(f"no time is left (--minutes) for: {' '.join(labels)}")
        return Count(skipped=len(labels))
    logs = Path(output(["bazel", "info", "--noshow_progress", *flags, "bazel-testlogs"])[0])
    started = time.time()
    status = run(
        [
            "bazel",
            "test",
            *flags,
            "--keep_going",
            "--test_output=errors",
            # Sanitizers slow a test down ten times and more.
            *(["--test_timeout=900"] if configs else []),
            *labels,
        ],
        until,
    )
    over = status != 0 and time.monotonic() >= until
    count = Count()
    for label in labels:
        results = result_files(logs / label.lstrip("/").replace(":", "/"))
        # What was there before says nothing of now, unless Bazel has gone through all of it.
        if over and (not results or any(not path.exists() or path.stat().st_mtime < started for path in results)):
            print(f"{label}: not run, no time was left (--minutes)")
            count.skipped += 1
            continue
        # Status 1: something did not build; an old result proves nothing then.
        if not results or (
            status == 1 and any(not path.exists() or path.stat().st_mtime < started for path in results)
        ):
            print(f"{label}: no result")
            count += Count(failed=1, names=(label,))
        for path in results:
            count += count_junit(path)
    if status != 0 and count.failed == 0 and not over:
        count.failed += 1
    return count


def step_build() -> Count:
    """Builds everything: what does not compile is told before anything runs."""
    return Count(failed=int(run(["bazel", "build", "--show_progress_rate_limit=10", "//..."]) != 0))


def step_native(pattern: str | None) -> Count:
    """Runs the Bazel tests."""
    return run_bazel(bazel_tests(pattern))


def keep_copy(built: Path, copy: Path) -> None:
    """The sanitizers' builds put theirs into the same place while the Python tests run."""
    if not built.exists():
        return
    copy.parent.mkdir(parents=True, exist_ok=True)
    fresh = copy.with_suffix(".new")
    shutil.copy(built, fresh)
    fresh.replace(copy)


def install_wheel(python: str | None = None) -> bool:
    """Builds the wheel and puts it into .venv, or the environment of this interpreter, if it is not there already; and
    the simulated GPUs, which are in no wheel (tests/frameworks/support/fake_cuda.py, tests/tools/test_gpu_check.py)."""
    targets = ["//frameworks/python:wheel", "//device_plugins/fake"]
    targets += [f"//tests/device_plugins/cuda:{name}" for name in STANDIN_FILES]
    if run(["bazel", "build", "--show_progress_rate_limit=10", *targets]) != 0:
        return False
    built = ROOT / "bazel-bin"
    keep_copy(built / "device_plugins/fake" / FAKE_GPU.name, FAKE_GPU)
    for name in STANDIN_FILES:
        keep_copy(built / "tests/device_plugins/cuda" / name, STANDINS / name)
    os.environ["FAKE_GPU_PLUGIN"] = str(FAKE_GPU)
    os.environ["GPU_STANDINS"] = str(STANDINS)
    return run([python or sys.executable, "tools/install_wheel.py"]) == 0


def step_wheel(python: str | None = None) -> Count:
    """Installs the wheel, so that what runs is what was built."""
    return Count(failed=int(not install_wheel(python)))


def python_lanes() -> list[list[str]]:
    """The folders with Python tests, divided among processes that run side by side."""
    folders = sorted({str(path.parent.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")})
    # They run on their own, behind the others; without their environments they are skipped here, and say so.
    own = tuple(folder for of in environments() if of.is_there() for folder in of.tests)
    folders = [folder for folder in folders if not folder.startswith(own or ("/",))]
    second = [folder for folder in folders if folder.startswith(SECOND_LANE)]
    return [lane for lane in ([folder for folder in folders if folder not in second], second) if lane]


class PythonTests:
    """The pytest files of some folders, beside the other steps.

    Args:
        stack: ends them when it is left
        folders: where the files are
        pattern: what the names of the tests contain, or None
        label: of this process among those that run side by side
        python: the interpreter; None: this one
    """

    def __init__(
        self, stack: ExitStack, folders: Sequence[str], pattern: str | None, label: str, python: str | None = None
    ) -> None:
        self.name = f"Python tests {label}"
        self._pattern = pattern
        self._results = RESULTS / f"pytest_{label}.xml"
        self._results.unlink(missing_ok=True)
        select = ["-k", pattern] if pattern is not None else []
        command = [
            python or sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rs",
            "--junit-xml",
            str(self._results),
            *select,
            *folders,
        ]
        log = RESULTS / f"pytest_{label}.log"
        print(f"+ {' '.join(command)} >{log} &", flush=True)
        with stops_held_back():
            self._process = stack.enter_context(SideProcess(command, ROOT, log))

    def running(self) -> bool:
        """Whether not all of them have run yet."""
        return self._process.running()

    def finish(self) -> Step:
        """Waits for the tests to end and shows what they have said."""
        status = self._process.wait()
        print(f"\n==== {self.name}", flush=True)
        print(self._process.log.read_text(errors="replace"), end="", flush=True)
        count = Count()
        if status != 5:  # 5: nothing selected
            count = count_junit(self._results)
            if status != 0 and count.failed == 0:
                count.failed += 1
        return Step(self.name, count, self._process.seconds())


def step_lint() -> Count:
    """Format, Python lint, and the direction of dependencies; each is one case."""
    count = Count()
    with suppress(subprocess.CalledProcessError):  # it says so itself, of each check
        for line in shown_lines([sys.executable, "tools/lint.py"]):
            count += Count(
                passed=line.startswith("ok "),
                failed=line.startswith("failed "),
                skipped=line.startswith("skipped "),
            )
    if count == Count():
        count.failed = 1
    return count


def abseil_config() -> list[str]:
    """What the sanitizers need for the installed Abseil: a configuration of .bazelrc, or none."""
    found = re.search(r"#define ABSL_LTS_RELEASE_VERSION (\d+)", Path("/usr/include/absl/base/config.h").read_text())
    return ["newer_abseil"] if found and int(found[1]) >= 20240000 else []


@contextmanager
def compiling_behind_others() -> Iterator[None]:
    """What Bazel's server runs meanwhile leaves the cores to other sessions of processes, such as the Python tests, as
    far as they want them: where the kernel schedules by session (sched(7), autogroup). Elsewhere nothing changes."""
    server = output(["bazel", "info", "--noshow_progress", "server_pid"])[0]
    autogroup = Path("/proc") / server / "autogroup"
    before = ""
    with suppress(OSError):
        before = autogroup.read_text().split()[-1]  # "/autogroup-25 nice 0"
        autogroup.write_text("10")
    try:
        yield
    finally:
        if before:
            autogroup.write_text(before)


def step_sanitizers(configs: Sequence[str], without: Sequence[str] = (), until: float = math.inf) -> Count:
    """The fast C++ tests again, but for those with a tag of `without`, in configurations of .bazelrc."""
    labels = bazel_tests(None, SANITIZER_TAG, without)
    configs = [*configs, *abseil_config()]
    # Tests have deadlines: they run as all others do.
    if labels and time.monotonic() < until:
        with compiling_behind_others():
            run(["bazel", "build", *bazel_flags(configs), "--keep_going", *labels], until)
    return run_bazel(labels, configs, until=until)


def libfuzzer() -> Path | None:
    """libFuzzer's archive, which comes with clang; the newest, if there is one."""
    found = Path("/usr/lib").glob("llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer_no_main-x86_64.a")
    return max(found, key=lambda path: int(re.findall(r"llvm-(\d+)", str(path))[0]), default=None)


def step_fuzz(until: float = math.inf) -> Count:
    """Fuzz targets by libFuzzer, some seconds each. Their corpora have run as plain tests before, also without it."""
    archive = libfuzzer()
    if archive is None:
        print("fuzz: no libFuzzer here (Debian: libclang-rt-14-dev); the corpora have run as plain tests")
        return Count(skipped=1)
    more = [f"--linkopt={archive}", "--nocache_test_results"]
    return run_bazel(bazel_tests(None, FUZZ_TAG), ["fuzz", *abseil_config()], more, until)


def has_cuda_toolkit() -> bool:
    """Whether third_party/cuda finds a CUDA Toolkit."""
    homes = [os.environ.get("BYTEPS_CUDA_HOME"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    return any((Path(home) / "include" / "cuda_runtime_api.h").exists() for home in homes if home)


def step_cuda() -> Count:
    """The tests of the CUDA plugin once more, with the kernels that nvcc compiles; without a GPU they run by stand-ins
    of the driver."""
    if not has_cuda_toolkit():
        print("cuda: no CUDA Toolkit here; the plugin has been built without its kernels")
        return Count(skipped=1)
    return run_bazel(
        [label for label in bazel_tests(None) if label.startswith("//tests/device_plugins/cuda")], ["cuda"]
    )


def step_soft_roce() -> Count:
    """The verbs transport in a virtual machine with a soft-RoCE device; each PASS and FAIL it prints is one case."""
    count = Count()
    try:
        for line in shown_lines(["tools/soft_roce/run"]):
            count += Count(passed=line.startswith("PASS "), failed=line.startswith("FAIL "))
    except subprocess.CalledProcessError:
        if count.failed == 0:
            count.failed += 1
    return count


@dataclass
class Step:
    """What came of a step, and how long it took."""

    name: str
    count: Count
    seconds: float

    def __str__(self) -> str:
        if self.count == Count():
            return f"{self.name}: {self.seconds:.0f} s"
        return f"{self.name}: {self.count} in {self.seconds:.0f} s"

    def failures(self) -> list[str]:
        """What failed, a line each; failures without a name as one."""
        if self.count.failed == 0:
            return []
        named = [f"failed: {name} ({self.name})" for name in dict.fromkeys(self.count.names)]
        return named or [f"failed: {self.name}"]


@dataclass
class Report:
    """The steps that have ended, each told when it does."""

    steps: list[Step] = field(default_factory=list)

    def run(self, name: str, step: Callable[[], Count]) -> Count:
        """Runs a step."""
        print(f"\n==== {name}", flush=True)
        started = time.monotonic()
        count = step()
        self.add(Step(name, count, time.monotonic() - started))
        return count

    def add(self, step: Step) -> None:
        """Tells a step that has ended."""
        self.steps.append(step)
        print(f"---- {step}", flush=True)

    def end(self) -> int:
        """Prints what failed and the sum, its last line for readers of that alone; the exit status."""
        total = sum((step.count for step in self.steps), Count())
        print("\n" + "\n".join(str(step) for step in self.steps))
        for step in self.steps:
            print("".join(f"{line}\n" for line in step.failures()), end="")
        if total.passed == 0:
            print("no test ran: nothing matched, or nothing could be built")
        print(total, flush=True)
        return 0 if total.failed == 0 and total.passed > 0 else 1


def run_frameworks(pattern: str | None, report: Report, asked: Sequence[Environment], every: bool = True) -> None:
    """The tests of the frameworks whose environments are there, one after another; every one, or those that run by
    default."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for environment in asked:
        if not environment.is_there():
            continue
        python = str(environment.python)
        if report.run(f"wheel for {environment.name}", partial(step_wheel, python)).failed:
            continue
        with ExitStack() as stack:
            tests = environment.tests if every else environment.by_default
            report.add(PythonTests(stack, tests, pattern, environment.name, python).finish())


def step_version(version: framework_versions.Version) -> Count:
    """The smoke suite of one version, in a fresh environment."""
    framework_versions.PLACE.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    results = RESULTS / f"version_{version.name}.xml"
    status = framework_versions.run(version, results)
    count = Count(failed=1) if status is None else count_junit(results)
    if status != 0 and count.failed == 0:
        count.failed += 1
    return count


def run_asked_frameworks(name: str, pattern: str | None, report: Report) -> None:
    """What --frameworks asks for: a framework, one of its versions, or "" for all. With a pattern only the tests in
    environments that stay. Raises SystemExit."""
    known = environments()
    found = [environment for environment in known if name in ("", environment.name)]
    asked = framework_versions.versions(name)
    if not found and not asked:
        there = [*known, *framework_versions.versions()]
        sys.exit(f"there is no framework {name}; there are: {', '.join(one.name for one in there)}")
    run_frameworks(pattern, report, found)
    if pattern is not None or not asked or report.run("wheel", step_wheel).failed:
        return
    for version in asked:
        report.run(version.name, partial(step_version, version))


def run_all(pattern: str | None, report: Report, until: float = math.inf) -> None:
    """Every kind of test, or those whose name contains `pattern`, without lint and sanitizers. `until`: when the
    sanitizers end, which come last."""
    if pattern is None and report.run("build", step_build).failed:
        report.run("lint", step_lint)
        return
    steps: list[tuple[str, Callable[[], Count]]] = [("C++ tests", lambda: step_native(pattern))]
    if pattern is None:
        steps += [
            ("CUDA kernels", step_cuda),
            ("lint", step_lint),
            ("C++ tests under asan and ubsan", lambda: step_sanitizers(["asan", "ubsan"], until=until)),
            ("C++ tests under tsan", lambda: step_sanitizers(["tsan"], [ONE_THREAD_TAG], until)),
            ("fuzz targets", lambda: step_fuzz(until)),
        ]
    with ExitStack() as stack:
        lanes: list[PythonTests] = []
        if report.run("wheel", step_wheel).failed == 0:
            RESULTS.mkdir(parents=True, exist_ok=True)
            lanes = [PythonTests(stack, folders, pattern, str(n)) for n, folders in enumerate(python_lanes(), 1)]
        for name, step in steps:
            report.run(name, step)
            for lane in [lane for lane in lanes if not lane.running()]:
                report.add(lane.finish())
                lanes.remove(lane)
        for lane in lanes:
            report.add(lane.finish())
    run_frameworks(pattern, report, environments(), every=pattern is not None)


def ended(number: int, _: object) -> None:
    """Asked to end: like Ctrl-C, what runs is ended on the way out."""
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/test", description=__doc__)
    parser.add_argument("pattern", nargs="?", help="run only tests whose name contains this")
    parser.add_argument("--soft-roce", action="store_true", help="run the verbs transport in a virtual machine instead")
    parser.add_argument(
        "--frameworks",
        nargs="?",
        const="",
        metavar="NAME",
        help="run the tests of frameworks that have an environment of their own and the smoke suites of their "
        "versions, or those of this framework (jax), or of this version (jax-0.5), instead",
    )
    parser.add_argument("--list", action="store_true", help="list the Bazel tests and pytest files")
    parser.add_argument(
        "--minutes",
        type=float,
        default=MINUTES,
        help="end what runs under the sanitizers so long after the start; what has not run then is skipped "
        "(%(default)s; 0: never)",
    )
    parser.add_argument("--set-up-took", type=float, default=0.0, help=argparse.SUPPRESS)  # seconds, from tools/test
    arguments = parser.parse_args()
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ended)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's job in the background begins without it
    if arguments.list:
        print("\n".join(bazel_tests(arguments.pattern)))
        print("\n".join(sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*.py"))))
        return 0
    until = time.monotonic() + 60 * arguments.minutes - arguments.set_up_took if arguments.minutes else math.inf
    report = Report()
    if arguments.set_up_took:
        report.add(Step("set-up", Count(), arguments.set_up_took))
    try:
        if arguments.soft_roce:
            report.run("verbs on soft-RoCE", step_soft_roce)
        elif arguments.frameworks is not None:
            run_asked_frameworks(arguments.frameworks, arguments.pattern, report)
        else:
            run_all(arguments.pattern, report, until)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
