"""Rules over whole tables, and comparisons of plans, need bounded memory, however many rows these have."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest

pytestmark = pytest.mark.extended
UNIQUENESS = """
import pyarrow.dataset as pd
from test_quality_checks import rule
from include.change.checkpoint import validate_tables
unique = rule("expect_column_values_to_be_unique", gold=True, column="event_id")
(found,) = validate_tables({{"gold.days": (pd.dataset({folder!r}), [unique])}})
print(found.passed, found.observed)
"""
COMPARISON = """
from pathlib import Path
from include.change.compare import compared_by_key, parquet_rows
sides = [parquet_rows(Path({folder!r}, side)) for side in ("old", "new")]
found = compared_by_key("silver.rows", ["event_id"], frozenset(), *sides)
print(found.old_rows, found.added, found.missing, found.changed, len(found.samples["changed"]))
"""
PEAK = """
status = open("/proc/self/status").read()
print(int(status.partition("VmHWM:")[2].split()[0]) // 1024)
"""


def write_texts(folder: Path, sql: str) -> str:
    """Write the rows of a query as Parquet files of 1,000,000 rows; return the folder."""
    with duckdb.connect() as database:
        database.execute(f"copy ({sql}) to '{folder}' (format parquet, per_thread_output, row_group_size 100000)")
    return str(folder)


def output_and_peak(code: str, state: Path) -> tuple[str, int]:
    """Return what a process of its own prints, and the peak of its memory in megabytes."""
    variables = {"PYTHONPATH": ":".join(sys.path), "HEADRACE_STATE": str(state), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code + PEAK], env=variables, text=True, capture_output=True, check=True, timeout=600
    )
    *printed, peak = done.stdout.strip().splitlines()
    return printed[-1], int(peak)


@pytest.mark.parametrize(
    ("texts", "verdict", "most"),
    [
        ("uuid()::varchar", "True 0 of 10,000,000 rows", 500),
        ("md5((n // 2)::varchar)", "False 10,000,000 of 10,000,000 rows", 700),
    ],
    ids=["unique", "all twice"],
)
def test_uniqueness_of_ten_million_texts_takes_bounded_memory(
    texts: str, verdict: str, most: int, tmp_path: Path
) -> None:
    folder = write_texts(tmp_path / "rows", f"select {texts} as event_id from range(10000000) as numbers(n)")
    printed, peak = output_and_peak(UNIQUENESS.format(folder=folder), tmp_path)
    print(f"{printed}: {peak} MB")
    assert printed == verdict
    assert peak <= most


@pytest.mark.timeout(1200)
def test_comparison_takes_no_more_memory_for_more_rows(tmp_path: Path) -> None:
    """All keys are unique, and one row in 100,000 differs."""
    peaks = {}
    for millions in (2, 20):
        rows, folder = millions * 1_000_000, tmp_path / str(millions)
        folder.mkdir()
        for side, added in (("old", 0), ("new", 1)):
            differing = f"n + {added} * (n % 100000 = 7)::bigint"
            values = (
                f"md5(n::varchar) as event_id, {differing} as distance, 'airport ' || n % 300 as origin, n % 97 as a"
            )
            write_texts(folder / side, f"select {values} from range({rows}) as numbers(n)")
        begun = time.monotonic()
        printed, peaks[millions] = output_and_peak(COMPARISON.format(folder=str(folder)), tmp_path)
        print(f"{millions} million rows of each side: {peaks[millions]} MB, {time.monotonic() - begun:.0f} s")
        assert printed == f"{rows} 0 0 {10 * millions} 5"
        shutil.rmtree(folder)
    assert peaks[20] <= 1200
    assert peaks[20] <= 2 * peaks[2]
