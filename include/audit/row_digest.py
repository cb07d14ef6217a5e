"""A digest of rows in DuckDB that does not depend on their order, so that a copy in other files has the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from include.ground.sql_quoting import sql_identifier


def row_digest(database: Any, rows: str, columns: Sequence[str]) -> tuple[int, int]:
    """Return the number of `rows` (a relation, maybe with a condition), and the sum of their hashes modulo 2^64."""
    marks = f"select hash({', '.join(map(sql_identifier, columns))}) as mark from {rows}"
    sql = f"select count(*), (coalesce(sum(mark), 0) % {2**64})::ubigint from ({marks})"
    found, digest = database.execute(sql).fetchall()[0]
    return int(found), int(digest)
