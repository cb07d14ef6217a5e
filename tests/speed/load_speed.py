"""What loading years of flights from files takes, planned, built, compared and checked: make bench-load.

The year of `make demo` is streamed first, in a state folder of its own. Each file is another year, gzipped JSON lines,
some of them invalid, late or twice. Nothing is published; the audit counts the records in bronze.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.event_supply import flight_year

HEADRACE = Path(sys.executable).with_name("headrace")
NOT_APPROVED = 1


def write_year(folder: Path, rows: int, number: int) -> None:
    """Write the first `rows` records of the year that is `number` repetitions earlier."""
    values = flight_year(-number)["value"].drop_nulls().head(rows).to_list()
    with gzip.open(folder / f"{number:03}.jsonl.gz", "wb", compresslevel=1) as file:
        file.write(b"\n".join(values))


def headrace(state: Path, *words: str) -> tuple[float, int]:
    """Run a command in the terminal; return its seconds and exit code."""
    began = time.monotonic()
    done = subprocess.run([HEADRACE, *words], env={**os.environ, "HEADRACE_STATE": str(state)}, check=False)
    return time.monotonic() - began, done.returncode


def main() -> int:
    """Print the seconds of the load; 1 when a command failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each file, at most 1,000,000")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-load-") as name:
        folder, state = Path(name) / "files", Path(name) / "state"
        folder.mkdir()
        with ProcessPoolExecutor() as pool:
            list(pool.map(partial(write_year, folder, given.rows), range(given.files)))
        try:
            codes = [headrace(state, "demo")[1]]
            seconds, code = headrace(
                state, "load", "run", "flights", "--files", f"{folder}/*.jsonl.gz", "--threshold", "0"
            )
            codes += [code - NOT_APPROVED, headrace(state, "audit", "--dataset", "flights")[1]]
        finally:
            headrace(state, "down")
    print(f"{given.files * given.rows:,} rows of {given.files} files: {seconds:.1f} s; exit codes {codes}")
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
