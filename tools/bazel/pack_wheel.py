"""Packs a wheel (PEP 427) from named files; called by tools/bazel/wheel.bzl with the system's Python.

The result is the same bytes for the same input: no times, sorted entries.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import pathlib
import re
import stat
import sys
import sysconfig
import zipfile


def platform_tag() -> str:
    """What this machine is to wheels."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


class Wheel:
    """One wheel being written."""

    def __init__(self, folder: pathlib.Path, name: str, version: str, tag: str) -> None:
        self._name, self._version, self._tag = name, version, tag
        self._zip = zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w", zipfile.ZIP_DEFLATED)
        self._records: list[str] = []

    def add(self, place: str, data: bytes, executable: bool = False) -> None:
        """Adds one file at `place`."""
        info = zipfile.ZipInfo(place, (1980, 1, 1, 0, 0, 0))
        # pip keeps the executable bit of what is marked as a regular file.
        info.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self._zip.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self._records.append(f"{place},sha256={digest},{len(data)}")

    def finish(self, license_text: bytes, readme: str, entry_points: list[str]) -> None:
        """Writes the metadata; `readme` (Markdown) becomes the long description; entry points are "group:name=what"."""
        info = f"{self._name}-{self._version}.dist-info"
        metadata = (
            f"Metadata-Version: 2.1\nName: {self._name}\nVersion: {self._version}\n"
            "Summary: Gradient communication for data-parallel training\nLicense: Apache-2.0\n"
            "Requires-Python: >=3.9\nRequires-Dist: cloudpickle\n"
            # Of bps_perf --plot alone.
            "Provides-Extra: plot\nRequires-Dist: matplotlib; extra == 'plot'\n"
            f"Description-Content-Type: text/markdown\n\n{readme}"
        )
        self.add(f"{info}/METADATA", metadata.encode())
        self.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {self._tag}\n".encode())
        self.add(f"{info}/LICENSE", license_text)
        if entry_points:
            lines = []
            for entry in sorted(entry_points):
                group, _, rest = entry.partition(":")
                lines += [f"[{group}]", rest.replace("=", " = ", 1), ""]
            self.add(f"{info}/entry_points.txt", "\n".join(lines).encode())
        self._zip.writestr(
            zipfile.ZipInfo(f"{info}/RECORD", (1980, 1, 1, 0, 0, 0)),
            "\n".join([*self._records, f"{info}/RECORD,,"]) + "\n",
        )
        self._zip.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--version-from", type=pathlib.Path, required=True)
    parser.add_argument("--license", type=pathlib.Path, required=True)
    parser.add_argument("--readme", type=pathlib.Path, required=True)
    parser.add_argument("--python-tag", type=pathlib.Path, required=True, help="file with a tag such as cp311-cp311")
    parser.add_argument("--entry-point", action="append", default=[], metavar="GROUP:NAME=MODULE:FUNCTION")
    parser.add_argument("--file", action="append", default=[], metavar="PLACE=PATH")
    arguments = parser.parse_args()

    match = re.search(r'elease\[?\]? = "([^"]+)"', arguments.version_from.read_text())
    if match is None:
        print(f"pack_wheel: no release in {arguments.version_from}", file=sys.stderr)
        return 1
    arguments.out.mkdir(parents=True, exist_ok=True)
    tag = f"{arguments.python_tag.read_text().strip()}-{platform_tag()}"
    wheel = Wheel(arguments.out, arguments.name, match.group(1), tag)
    for entry in sorted(arguments.file):
        place, path = entry.split("=", 1)
        data = pathlib.Path(path).read_bytes()
        scripts = place.startswith("@scripts/")
        if scripts:
            place = f"{arguments.name}-{match.group(1)}.data/scripts/" + place.removeprefix("@scripts/")
        binary = data[:4] == b"\x7fELF"
        wheel.add(place, data, executable=scripts or binary)
    wheel.finish(arguments.license.read_bytes(), arguments.readme.read_text(), arguments.entry_point)
    return 0


if __name__ == "__main__":
    sys.exit(main())
