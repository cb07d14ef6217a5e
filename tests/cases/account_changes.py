"""Records of the dataset `accounts`, changes of rows, and what plain Python makes of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from small_release import Record, SmallRelease

ACCOUNTS = Path(__file__).parents[1] / "recovery" / "datasets" / "accounts"
BEGIN = datetime(2026, 11, 29, 12, tzinfo=UTC)
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Change:
    """One change of one row; a deleted row has no values, and a truncation (`t`) no row."""

    lsn: int
    op: str
    id: int | None = None
    owner: str | None = None
    balance: int | None = None
    second: int = 0

    @property
    def at(self) -> datetime:
        return BEGIN + timedelta(seconds=self.second)

    def sent(self, partition: int = 0) -> Record:
        """Return the record of the change."""
        row = {"id": self.id} if self.op in "dt" else {"id": self.id, "owner": self.owner, "balance": self.balance}
        found = {"change_id": f"{self.id}/{self.lsn}", "op": self.op, "changed_at": self.at.isoformat()}
        return Record(json.dumps({**found, "source": {"lsn": self.lsn}, "row": row}).encode(), partition=partition)


def history(seed: int, count: int, keys: int = 8) -> list[Change]:
    """Return changes as a table of a database makes them: rows come, change, go, all at once too, and come back."""
    numbers, there, found = random.Random(seed), dict[int, tuple[str | None, int]](), list[Change]()
    for lsn in range(10, 10 + 10 * count, 10):
        key, second = numbers.randrange(keys), lsn // 4 - numbers.choice([0, 0, 0, 9])
        values = numbers.choice(["ada", "bob", None]), numbers.randrange(3)
        if numbers.random() < 0.03:
            found.append(Change(lsn, "t", second=second))
            there.clear()
            continue
        if key not in there:
            found.append(Change(lsn, "c", key, *values, second))
        elif numbers.random() < 0.3:
            found.append(Change(lsn, "d", key, second=second))
        else:
            values = there[key] if numbers.random() < 0.2 else values
            found.append(Change(lsn, "u", key, *values, second))
        there.pop(key, None)
        if found[-1].op != "d":
            there[key] = values
    return found


def snapshot(changes: Iterable[Change], until: int) -> list[Change]:
    """Return the rows that a snapshot reads after the change of this number: one record for each row that is there."""
    there = current(each for each in changes if each.lsn <= until)
    return [Change(until + 5, "r", key, owner, balance, until // 4) for key, owner, balance in there]


def by_key(changes: Iterable[Change]) -> list[tuple[int, list[Change]]]:
    """Return the changes of each key in their order, truncations among them."""
    ordered = sorted(changes, key=lambda each: each.lsn)
    keys = sorted({each.id for each in ordered if each.id is not None})
    return [(key, [each for each in ordered if each.id in (key, None)]) for key in keys]


def current(changes: Iterable[Change]) -> list[Row]:
    """Return the rows of `account_now`."""
    newest = [found[-1] for _, found in by_key(changes)]
    return [(each.id, each.owner, each.balance) for each in newest if each.op not in "dt"]


def versions(changes: Iterable[Change]) -> list[Row]:
    """Return the rows of `account_versions`."""
    rows = list[Row]()
    for key, found in by_key(changes):
        state, since, reached = None, None, datetime.min.replace(tzinfo=UTC)
        for each in found:
            reached = max(reached, each.at)
            after = None if each.op in "dt" else (each.owner or "nobody", each.balance)
            if after != state:
                rows += [] if state is None else [(key, *state, since, reached, False)]
                state, since = after, reached
        rows += [] if state is None else [(key, *state, since, None, True)]
    return sorted(rows, key=repr)


def published(release: SmallRelease, table: str) -> list[Row]:
    """Return the published rows without what the platform notes about them."""
    found = release.read(f"gold.{table}")
    return sorted(found.select(name for name in found.columns if not name.startswith("_")).rows(), key=repr)


def assert_right(release: SmallRelease, changes: Sequence[Change]) -> None:
    """Assert that both tables have what plain Python makes of the changes."""
    assert published(release, "account_now") == sorted(current(changes), key=repr)
    assert published(release, "account_versions") == versions(changes)
