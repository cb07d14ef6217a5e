"""The types that a release's snapshot recorded for its columns: a snapshot without a record is of an earlier version.

Earlier versions ignored `physicalType`, apart from a decimal's digits, and their tables have the types that were left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

TYPES_FILE = "column_types.yaml"
EARLIER_DECIMAL = re.compile(r"decimal\([0-9]{1,2},\s*[0-9]{1,2}\)")


def recorded_types(folder: Path) -> Mapping[str, str]:
    """Return by column the physical types that a snapshot recorded."""
    path = folder / TYPES_FILE
    found: Mapping[str, str] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found


def write_types(folder: Path, types: Mapping[str, str], unrecorded: Mapping[str, str]) -> None:
    """Record in a snapshot the types that a column would not have without a record; without any nothing is written."""
    recorded = {name: text for name, text in types.items() if unrecorded.get(name) != text}
    if recorded:
        (folder / TYPES_FILE).write_text(json.dumps(recorded) + "\n", "utf-8")


def earlier_type(logical: str, physical: str) -> str:
    """Return what earlier versions read of a physical type."""
    return physical if logical == "number" and EARLIER_DECIMAL.fullmatch(physical) else ""
