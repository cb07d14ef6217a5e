"""Projects the ranges that backfills verified, from their files next to the tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection

from include.ground.paths import verified_path
from include.ground.settings import Settings
from include.observe.commit_rows import Row, Values
from include.observe.ledger_rows import upsert
from include.observe.ledger_schema import verifications
from include.state.release_files import verified_file

# A folder that changed so recently may change again without another modification time.
SETTLED_SECONDS = 2.0


def insert_verifications(connection: Connection, settings: Settings, dataset: str, compared: set[str]) -> None:
    """Enter the verifications of a dataset's releases; the same again is the same row. Raises StateFileUnreadable.

    Folders in `compared` are skipped until they change.
    """
    pattern = verified_path(settings, dataset, "*", "*").parent.relative_to(settings.state)
    for folder in sorted(settings.state.glob(str(pattern))):
        changed = folder.stat().st_mtime_ns
        if (key := f"{folder} {changed}") not in compared:
            upsert(connection, _rows(folder, dataset))
            if time.time() - changed / 1e9 > SETTLED_SECONDS:
                compared.add(key)


def _rows(folder: Path, dataset: str) -> Iterator[Row]:
    for path in sorted(folder.glob("*.json")):
        if verified := verified_file(path).read():
            key: Values = {"dataset": dataset, "release": path.parent.parent.name, "plan": verified.plan}
            spans: Values = {"since_ms": _ms(verified.since), "until_ms": _ms(verified.until)}
            times: Values = {"batch": verified.batch, "verified_at_ms": verified.verified_at_ms}
            yield Row(verifications, key | spans | times)


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)
