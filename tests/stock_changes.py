"""Changes of the rows of a table as Debezium sends them: the shape of its documented events, with values of our own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Row = dict[str, Any]
POSTGRES = {"connector": "postgresql", "snapshot": "false", "table": "stock"}
MYSQL = {"connector": "mysql", "file": "mysql-bin.000003", "row": 0, "query": None}


def stock_changes(source: Row, position: str) -> Iterator[Row]:
    """Yield changes of rows (shop, item): created, changed, deleted with the key alone, created again."""

    def change(n: int, op: str, before: Row | None, after: Row | None) -> Row:
        at = 1_780_000_000_000 + n
        return {"before": before, "after": after, "source": {**source, position: 900 + 8 * n}, "op": op, "ts_ms": at}

    n = 0
    for again in range(2):
        for shop in ("north", "south"):
            for item in range(10):
                key = {"shop": shop, "item_no": item}
                first, second = ({**key, "left": 5 - used, "price": "1.50"} for used in (0, 1))
                yield change(n, "r" if n == 0 else "c", None, first)
                yield change(n + 1, "u", first, second)
                if not again:
                    yield change(n + 2, "d", key, None)
                n += 3
