"""What the bank's tables must hold, from Debezium's records alone, in plain Python: rows now, their versions, sums."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from workloads.oracle_rows import Expected, Row

Event = dict[str, Any]
NEVER = datetime.min.replace(tzinfo=UTC)


def expected_bank_accounts(records: Iterable[bytes]) -> Expected:
    """Return the rows of each gold table of the accounts."""
    logs = _logs(records, "aid")
    return {
        "accounts": _rows_now(logs, "aid", ("bid", "abalance", "filler", "note")),
        "account_versions": _versions(logs, "aid", ("bid", "abalance")),
    }


def expected_bank_tellers(records: Iterable[bytes]) -> Expected:
    """Return the rows of each gold table of the tellers."""
    logs, columns = _logs(records, "tid"), ("bid", "tbalance")
    return {"tellers": _rows_now(logs, "tid", columns), "teller_versions": _versions(logs, "tid", columns)}


def expected_bank_history(records: Iterable[bytes]) -> Expected:
    """Return the rows of each gold table of the payments."""
    records = [*records]
    rows = _rows_now(_logs(records, "hid"), "hid", ("tid", "bid", "aid", "delta", "mtime"))
    history = [row | {"mtime": datetime.fromisoformat(row["mtime"])} for row in rows]
    return {"history": history, "teller_hours": _teller_hours(map(json.loads, records))}


def expected_bank(records: Mapping[str, Iterable[bytes]]) -> Expected:
    """Return what each branch owes by the rows of accounts and tellers."""
    accounts = expected_bank_accounts(records["bank_accounts"])["accounts"]
    tellers = expected_bank_tellers(records["bank_tellers"])["tellers"]
    branches = {row["bid"] for row in (*accounts, *tellers)}
    return {
        "branch_balances": [
            {
                "bid": branch,
                "accounts": sum(row["bid"] == branch for row in accounts),
                "owed": sum(row["abalance"] for row in accounts if row["bid"] == branch),
                "tellers": sum(row["bid"] == branch for row in tellers),
            }
            for branch in branches
        ]
    }


def _logs(records: Iterable[bytes], key: str) -> dict[Any, list[Event]]:
    """Return the changes of each row in their order, truncations of the table among them.

    What a snapshot read was committed before all that the log had after it, whatever its place in the log.
    """
    events = {record: json.loads(record) for record in records}.values()
    ordered = sorted(events, key=lambda each: (each["op"] != "r", each["source"]["lsn"]))
    truncations = [each for each in ordered if each["op"] == "t"]
    logs = defaultdict[Any, list[Event]](list)
    for event in ordered:
        if event["op"] != "t":
            logs[(event["after"] or event["before"])[key]].append(event)
    for log in logs.values():
        log += truncations
        log.sort(key=lambda each: (each["op"] != "r", each["source"]["lsn"]))
    return logs


def _rows_now(logs: Mapping[Any, list[Event]], key: str, columns: Iterable[str]) -> list[Row]:
    last = {number: log[-1]["after"] for number, log in logs.items()}
    return [{key: number, **{name: row.get(name) for name in columns}} for number, row in last.items() if row]


def _versions(logs: Mapping[Any, list[Event]], key: str, columns: Iterable[str]) -> list[Row]:
    found = list[Row]()
    for number, log in logs.items():
        for values, since, until in _periods(log, tuple(columns)):
            row = {key: number, **values, "valid_from": since, "valid_to": until, "is_current": until is None}
            found.append(row)
    return found


def _periods(log: Iterable[Event], columns: tuple[str, ...]) -> Iterator[tuple[Row, datetime, datetime | None]]:
    """Yield the values that a row had, since when and until when."""
    values, since, now = dict[str, Any](), NEVER, NEVER
    for event in log:
        now = max(now, datetime.fromtimestamp(event["source"]["ts_ms"] / 1000, UTC))
        after = {name: event["after"][name] for name in columns} if event["after"] else {}
        if after != values:
            if values:
                yield values, since, now
            values, since = after, now
    if values:
        yield values, since, None


def _teller_hours(events: Iterable[Event]) -> list[Row]:
    paid = defaultdict[tuple[datetime, int], dict[int, int]](dict)
    for event in events:
        if event["op"] in ("c", "r"):
            at, row = datetime.fromtimestamp(event["source"]["ts_ms"] / 1000, UTC), event["after"]
            paid[at.replace(minute=0, second=0, microsecond=0), row["tid"]][row["hid"]] = row["delta"]
    return [
        {"hour": hour, "tid": tid, "payments": len(deltas), "paid": sum(deltas.values())}
        for (hour, tid), deltas in paid.items()
    ]
