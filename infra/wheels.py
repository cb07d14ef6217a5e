"""Prints the wheels of each package of a pylock file: `python infra/wheels.py PYLOCK` (`lock.sh` writes wheels.lock).

A line is `name==version` and the tags of its wheels for CPython on Linux (glibc) and macOS; without one it is installed
from source. `tests/unit/test_locks.py` compares them with what set-up promises.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

WANTED = re.compile(r"(cp|py)[23]\d*(\.py3)?-\w+-(any|manylinux|linux|macosx)")


def tags(package: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tags of a package's wheels, of which the last three parts of a file's name consist."""
    for wheel in package.get("wheels", ()):
        name = wheel.get("name") or wheel["url"].rpartition("/")[2]
        tag = "-".join(name.removesuffix(".whl").split("-")[-3:])
        if WANTED.match(tag):
            yield tag


def main(lock: Path) -> None:
    """Print a line for each package."""
    for package in tomllib.loads(lock.read_text("utf-8"))["packages"]:
        print(f"{package['name']}=={package['version']}", *sorted(tags(package)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
