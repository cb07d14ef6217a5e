"""What is left out of recorded outputs, and how the rest is written, so that equal behaviour gives equal bytes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

LEFT_OUT = {
    # When and how fast it ran, and what was predicted from the speed and the files of earlier runs.
    **dict.fromkeys(("at", "planned_at", "published_at", "checked_at", "read_at_ms"), "time"),
    **dict.fromkeys(("seconds", "job_seconds", "p95_seconds", "predicted"), "time"),
    # Hashes of a dataset's folder: a moved import in a `silver.py` changes them. Attempts are random.
    **dict.fromkeys(("release", "base", "attempt"), "id"),
    # How many batches the driver cut the records into depends on when they arrived. With the batches differ the
    # files, their bytes, the versions of tables, and the spans of a slice, which whole batches make up.
    **dict.fromkeys(("batch", "version", "files", "bytes", "ranges", "spans", "offsets", "scope"), "batches"),
    # Where the state folder is.
    **dict.fromkeys(("path", "site", "page"), "path"),
    # Lines that a dataset declares: a restructuring may change them.
    "declared_lines": "lines",
}
"""The keys of JSON outputs whose values are left out, by what they are."""
RECORDED_WHOLE = ("differing_rows",)
"""Keys whose values are recorded whole: the verdicts of a workload, one of which is called `batch`, its batch job."""
LEFT_OUT_OF_ROWS = ("first_seen",)
"""Columns of tables that are left out besides: when a rejected record was read."""
OWN_COLUMNS = ("_partition", "_offset")
"""Of the columns that the platform adds, the ones that are recorded; others are batches, revisions, sketches."""
EARLIER = re.compile(r'("detail": ")\d+(/\d+/\d+")')
"""The batch, partition and offset of the record of which another one is a duplicate."""
SOURCE_BATCH = re.compile(r'("[\w.]+ batch )\d+(?=",?$)', re.MULTILINE)
"""The batch of a source table that a derived dataset has read."""
TEXT_LEFT_OUT = (
    (re.compile(r"release [0-9a-f]{12}, batch \d+ *"), "release …, batch …"),
    (re.compile(r"files: \d+ verified"), "files: … verified"),
    (re.compile(r"Done after \d+ s\..*", re.DOTALL), "Done"),
)
"""What is left out of printed texts: ids, batches, files as above; after the end come addresses and process ids."""
MOST_ROWS = 150
"""Rows of a table that its file shows. Of more rows it shows this many, evenly spaced; its hash is over all of them."""


def plain(value: Any) -> Any:
    """Return a JSON value without what is left out; floats to 13 digits: the order of a sum decides its last ones."""
    if isinstance(value, dict):
        return {key: item if key in RECORDED_WHOLE else _plain_item(key, item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return float(f"{value:.13g}") if isinstance(value, float) else value


def _plain_item(key: str, item: Any) -> Any:
    return f"({LEFT_OUT[key]})" if key in LEFT_OUT else plain(item)


def json_text(output: str) -> str:
    """Return a command's JSON output without what is left out, one value a line, keys sorted."""
    text = json.dumps(plain(json.loads(output)), indent=1, sort_keys=True, ensure_ascii=False)
    return SOURCE_BATCH.sub(r"\1…", EARLIER.sub(r"\1…\2", text)) + "\n"


def printed_text(output: str) -> str:
    """Return a command's printed output without what is left out."""
    for pattern, instead in TEXT_LEFT_OUT:
        output = pattern.sub(instead, output)
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


def rows_text(rows: Iterable[str], types: Sequence[tuple[str, str]]) -> str:
    """Return a table as text: types, a hash of each column and of all rows, and some rows, sorted.

    `rows`: JSON objects.
    """
    found = [{name: item for name, item in json.loads(row).items() if is_recorded(name)} for row in rows]
    lines = sorted(as_line(row) for row in found)
    text = [f"{len(lines)} rows, {digest(lines)}"]
    for name, kind in types:
        if is_recorded(name):
            values = sorted(as_line(row[name]) for row in found)
            text.append(f"{name} {kind}: {len(set(values))} values, {digest(values)}")
    step = max(1, -(-len(lines) // MOST_ROWS))
    return "\n".join([*text, *lines[::step]]) + "\n"


def is_recorded(column: str) -> bool:
    return column in OWN_COLUMNS or not (column.startswith("_") or column in LEFT_OUT_OF_ROWS)


def as_line(value: Any) -> str:
    return EARLIER.sub(r"\1…\2", json.dumps(value, ensure_ascii=False))


def digest(lines: Iterable[str]) -> str:
    """Return a hash of lines."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
