"""Which ranges a backfill did again and found equal, from the files that it left beside the tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime

from sqlalchemy import Connection

from include.errors import Terminal
from include.ledger.commit_rows import Row, Values
from include.ledger.ledger_rows import upsert
from include.ledger.ledger_schema import verifications
from include.paths import verified_path
from include.settings import Settings


class VerificationUnreadable(Terminal):
    """A file is no verification; they are only ever written whole, so somebody edited it."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} is no verification ({why}); it was not entered", f'rm "{path}"')
        self.path = path


def insert_verifications(connection: Connection, settings: Settings, dataset: str) -> None:
    """Enter every verification of a dataset's releases; the same again is the same row."""
    upsert(connection, _rows(settings, dataset))


def _rows(settings: Settings, dataset: str) -> Iterator[Row]:
    pattern = verified_path(settings, dataset, "*", "*").relative_to(settings.state)
    for path in sorted(settings.state.glob(str(pattern))):
        try:
            said = json.loads(path.read_text("utf-8"))
            key: Values = {"dataset": dataset, "release": path.parent.parent.name, "plan": str(said["plan"])}
            spans: Values = {f"{name}_ms": _ms(said[name]) for name in ("since", "until")}
            times: Values = {"batch": int(said["batch"]), "verified_at_ms": int(said["verified_at_ms"])}
        except (ValueError, KeyError, TypeError) as error:
            raise VerificationUnreadable(str(path), f"{type(error).__name__}: {error}") from error
        yield Row(verifications, key | spans | times)


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)
