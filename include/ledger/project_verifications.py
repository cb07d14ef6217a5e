"""Projects the ranges that backfills verified, from their files next to the tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from sqlalchemy import Connection

from include.ledger.commit_rows import Row, Values
from include.ledger.ledger_rows import upsert
from include.ledger.ledger_schema import verifications
from include.paths import verified_path
from include.settings import Settings
from include.state.release_files import verified_file


def insert_verifications(connection: Connection, settings: Settings, dataset: str) -> None:
    """Enter every verification of a dataset's releases; the same again is the same row. Raises StateFileUnreadable."""
    upsert(connection, _rows(settings, dataset))


def _rows(settings: Settings, dataset: str) -> Iterator[Row]:
    pattern = verified_path(settings, dataset, "*", "*").relative_to(settings.state)
    for path in sorted(settings.state.glob(str(pattern))):
        if verified := verified_file(path).read():
            key: Values = {"dataset": dataset, "release": path.parent.parent.name, "plan": verified.plan}
            spans: Values = {"since_ms": _ms(verified.since), "until_ms": _ms(verified.until)}
            times: Values = {"batch": verified.batch, "verified_at_ms": verified.verified_at_ms}
            yield Row(verifications, key | spans | times)


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)
