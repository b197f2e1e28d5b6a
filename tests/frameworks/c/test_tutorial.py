"""The program that docs/frameworks/c.md builds step by step, as it stands there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from byteps.library import LIBRARY
from jobs import DEADLINE, launcher_command, output_of

_CHECKOUT = Path(__file__).parents[3]


def _program() -> str:
    page = (_CHECKOUT / "docs" / "frameworks" / "c.md").read_text()
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", page, re.MULTILINE)
    job = next(block for block in blocks if "#include" in block)
    steps = next(block for block in blocks if "bps_declare_args" in block)
    place = "      Check(bps_shutdown"
    assert job.count(place) == 1
    return job.replace(place, f'{steps}      printf("sum %g\\n", numbers[3]);\n{place}')


def test_the_page_compiles_and_runs(tmp_path: Path) -> None:
    source, program = tmp_path / "hello.c", tmp_path / "hello"
    source.write_text(_program())
    library = Path(LIBRARY.path).resolve().parent
    command = ["cc", "-std=c11", "-Wall", "-Werror", f"-I{_CHECKOUT}", str(source), "-o", str(program)]
    subprocess.run([*command, f"-L{library}", f"-Wl,-rpath,{library}", "-lbyteps"], check=True, timeout=DEADLINE)
    output = output_of([*launcher_command(3, 1), str(program)])
    assert output.count("sum 3\n") == 3, output
    assert "rank 2 of 3" in output
