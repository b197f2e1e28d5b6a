"""Where the installed package has what compilers need: `python -m byteps.config --cflags --libs`.

    cc trainer.c $(python -m byteps.config --cflags --libs) -o trainer
    cmake -Dbyteps_DIR=$(python -m byteps.config --cmake-dir) ...

What is asked for is printed in one line, in the order of the options below.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def include_dir() -> Path:
    """The folder to name with -I: programs say `#include <byteps/byteps.h>`."""
    return ROOT / "include"


def library_dir() -> Path:
    """The folder of libbyteps.so and libbyteps.so.1."""
    return ROOT / "lib"


def plugin_dir() -> Path:
    """The folder where the library looks for plugins."""
    return library_dir() / "byteps" / "plugins"


def cmake_dir() -> Path:
    """What find_package(byteps) takes as byteps_DIR."""
    return library_dir() / "cmake" / "byteps"


def pkgconfig_dir() -> Path:
    """What belongs into PKG_CONFIG_PATH."""
    return library_dir() / "pkgconfig"


def main() -> None:
    """Prints what is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m byteps.config",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    include, library = shlex.quote(str(include_dir())), shlex.quote(str(library_dir()))
    answers = {
        "cflags": (f"-I{include}", "flags of the compiler"),
        "includes": (f"-I{include}", "the folder of the headers, as a flag"),
        "libs": (f"-L{library} -lbyteps -Wl,-rpath,{library}", "flags of the linker"),
        "cmake-dir": (str(cmake_dir()), "the folder of the CMake package, for byteps_DIR"),
        "pkgconfig-dir": (str(pkgconfig_dir()), "the folder of byteps.pc, for PKG_CONFIG_PATH"),
        "plugin-dir": (str(plugin_dir()), "the folder where plugins belong"),
    }
    for name, (_, meaning) in answers.items():
        parser.add_argument(f"--{name}", action="store_true", help=meaning)
    asked = vars(parser.parse_args())
    wanted = [answer for name, (answer, _) in answers.items() if asked[name.replace("-", "_")]]
    if not wanted:
        parser.error("ask for something: " + " ".join(f"--{name}" for name in answers))
    print(*wanted)


if __name__ == "__main__":
    main()
