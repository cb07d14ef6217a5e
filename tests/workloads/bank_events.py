"""Changes of pgbench's tables as Debezium writes them: a snapshot, payments, customers who come, change, and go.

Accounts have their key alone in what was before, tellers their whole row. A payment was open when the snapshot was
made: its place in the log is before that of the rows that the snapshot read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import polars as pl

from include.producers.feed import Feed
from workloads.generated_events import event_frame

ACCOUNTS, TELLERS, BRANCHES, TRANSACTIONS = 150, 10, 3, 2500
START, BETWEEN = datetime(2026, 3, 2, tzinfo=UTC), timedelta(seconds=20)
ACCOUNT, TELLER, PAYMENT = "pgbench_accounts", "pgbench_tellers", "pgbench_history"
KEYS = {ACCOUNT: "aid", TELLER: "tid", PAYMENT: "hid"}
Row = dict[str, Any]
Made = tuple[str, str, str, datetime, Row]
"""The table, and what `event_frame` takes."""


@dataclass
class _Bank:
    """The tables as they are, and the place in the log."""

    numbers: random.Random
    shift: timedelta
    tables: dict[str, dict[int, Row]] = field(default_factory=lambda: {table: {} for table in KEYS})
    lsn: int = 1000
    transaction: int = 700
    aid: int = 0
    hid: int = 0

    @property
    def now(self) -> datetime:
        return START + self.shift + self.transaction * BETWEEN

    def change(self, table: str, op: str, before: Row | None, after: Row | None, lsn: int = 0) -> Made:
        """Note a change in the table, and return its record."""
        if not lsn:
            self.lsn += self.numbers.choice((8, 56, 120))
        key, rows = KEYS[table], self.tables[table]
        if before is not None:
            rows.pop(before[key], None)
            if table != TELLER:
                before = {name: value if name == key else None for name, value in before.items()}
        if after is not None:
            rows[after[key]] = after
        ms = int(self.now.timestamp() * 1000)
        source = {"connector": "postgresql", "db": "bank", "schema": "public", "table": table, "ts_ms": ms}
        source |= {"txId": self.transaction, "lsn": lsn or self.lsn, "snapshot": "true" if op == "r" else "false"}
        seen = before if op == "d" or (op == "u" and table == TELLER) else None
        record = {"before": seen, "after": after, "source": source, "op": op, "ts_ms": ms + 40}
        number = (after or before or {key: "all"})[key]
        return table, str(number), f"{table}/{number}/{lsn or self.lsn}/{op}", self.now, record

    def account(self) -> Row:
        self.aid += 1
        return {"aid": self.aid, "bid": 1 + self.aid % BRANCHES, "abalance": 0, "filler": "    "}

    def some(self, table: str) -> Row:
        return self.numbers.choice([*self.tables[table].values()])

    def payment(self) -> Iterator[Made]:
        account, teller, delta = self.some(ACCOUNT), self.some(TELLER), self.numbers.randint(-500, 500)
        yield self.change(ACCOUNT, "u", account, account | {"abalance": account["abalance"] + delta})
        yield self.change(TELLER, "u", teller, teller | {"tbalance": teller["tbalance"] + delta})
        self.hid += 1
        at = f"{self.now:%Y-%m-%dT%H:%M:%S}.{self.hid % 10**6:06d}Z"
        paid = {"hid": self.hid, "tid": teller["tid"], "bid": account["bid"], "aid": account["aid"], "delta": delta}
        yield self.change(PAYMENT, "c", None, paid | {"mtime": at})

    def customer(self) -> Iterator[Made]:
        """One comes, one gets another number and a note, one moves, one leaves; a payment is struck off the record."""
        yield self.change(ACCOUNT, "c", None, self.account())
        old, self.aid = self.some(ACCOUNT), self.aid + 1
        yield self.change(ACCOUNT, "d", old, None)
        yield self.change(ACCOUNT, "c", None, old | {"aid": self.aid, "note": "renumbered"})
        moved = self.some(ACCOUNT)
        yield self.change(ACCOUNT, "u", moved, moved | {"bid": 1 + moved["bid"] % BRANCHES})
        yield self.change(ACCOUNT, "d", self.some(ACCOUNT), None)
        if self.tables[PAYMENT]:
            yield self.change(PAYMENT, "d", self.some(PAYMENT), None)

    def truncated(self, table: str) -> Iterator[Made]:
        rows = [*self.tables[table].values()]
        self.tables[table].clear()
        yield self.change(table, "t", None, None)
        if table == TELLER:
            yield from (self.change(TELLER, "c", None, row | {"tbalance": 0}) for row in rows[1:])

    def snapshot(self) -> Iterator[Made]:
        """Yield what the snapshot reads, and the payment that was open meanwhile."""
        read = [(table, row) for table, rows in self.tables.items() for row in [*rows.values()]]
        during = [*self.payment()]
        for table, row in read:
            made = self.change(table, "r", None, row, lsn=self.lsn + 4)
            yield made
        for table, _, _, _, record in during:
            self.tables[table][record["after"][KEYS[table]]] = record["after"]
        yield from during


@cache
def bank_changes(shift: timedelta) -> tuple[Made, ...]:
    """Return all changes of the bank, in the order of its log."""
    bank = _Bank(random.Random(7), shift, lsn=1000 + int(shift.total_seconds()))
    for number in range(ACCOUNTS):
        account = bank.account()
        bank.tables[ACCOUNT][account["aid"]] = account
        if number < TELLERS:
            bank.tables[TELLER][number + 1] = {"tid": number + 1, "bid": 1 + number % BRANCHES, "tbalance": 0}
    found = [*bank.snapshot()]
    for number in range(TRANSACTIONS):
        bank.transaction += 1
        kinds = bank.payment() if number % 6 else bank.customer()
        found += bank.truncated(TELLER) if number % 400 == 233 else kinds  # noqa: PLR2004
        if number % 1000 == 400:  # noqa: PLR2004
            found += bank.truncated(PAYMENT)
    return tuple(found)


def _feed(topic: str, table: str, what: str) -> Feed:
    def frame(shift: timedelta = timedelta(0)) -> pl.DataFrame:
        """Return the changes of the table, moved by `shift`; columns as in `Feed.frame`."""
        return event_frame(made[1:] for made in bank_changes(shift) if made[0] == table)

    return Feed(
        name=topic,
        topic=topic,
        source=f"the changes of {what} in {TRANSACTIONS:,} generated transactions of a bank, by Debezium",
        id_field="op",
        time_field="op",
        frame=frame,
        wrong_values=(),
        corruptible=False,
    )


BANK_ACCOUNTS = _feed("bank_accounts", ACCOUNT, "accounts")
BANK_TELLERS = _feed("bank_tellers", TELLER, "tellers")
BANK_HISTORY = _feed("bank_history", PAYMENT, "payments")
