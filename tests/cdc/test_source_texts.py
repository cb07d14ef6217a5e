"""A row is the same text in PostgreSQL and in DuckDB, for each type, and another row another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from include.audit import source as audited_source
from include.audit.source import (
    FORMS,
    MIRROR_DIGEST,
    DatabaseTable,
    MirroredColumn,
    Moment,
    SourceDatabase,
    SourceUnusable,
    row_hash,
)
from include.read.memory_database import memory_database
from infra.postgres.server import PostgresServer, postgres_server

VALUES: dict[tuple[str, str], list[str | None]] = {
    ("integer", "INTEGER"): ["0", "-7", "2147483647", None],
    ("bigint", "BIGINT"): ["-9223372036854775808", "12"],
    ("smallint", "INTEGER"): ["-1"],
    ("numeric(12,3)", "DECIMAL(12,3)"): ["12.5", "-0.001", "0", "100", "999999999.999", None],
    ("numeric", "DECIMAL(38,10)"): ["1234567890123456789.12", "10"],
    ("bigint", "DECIMAL(20,0)"): ["1200"],
    ("boolean", "BOOLEAN"): ["true", "false", None],
    ("double precision", "DOUBLE"): ["0.1", "1e20", "-1e-300", "3", "123456.789", "-0.0"],
    ("real", "DOUBLE"): ["1.1", "-3.25e10"],
    ("real", "FLOAT"): ["0.1", "1.1", "-3.25e10", "16777216", "3.4028235e38", "1e-45", "-0.0", None],
    ("text", "VARCHAR"): ["", "a,b", "żółw 🐢", "it's", "100%", "\\", "null", None],
    ("char(5)", "VARCHAR"): ["ab   "],
    ("varchar(9)", "VARCHAR"): [" x "],
    ("uuid", "VARCHAR"): ["0c9f2a0e-5b1c-4ae2-9d31-0b6f5a1d2c3e"],
    ("jsonb", "VARCHAR"): ['{"a": 1, "b": [true, null]}'],
    ("date", "DATE"): ["2026-11-29", "1999-01-01", None],
    ("timestamp", "TIMESTAMP WITH TIME ZONE"): ["2026-11-29 12:00:00.123456", "1969-12-31 23:59:59.9"],
    ("timestamptz", "TIMESTAMP WITH TIME ZONE"): ["2026-11-29 12:00:00.5+02", None],
    ("timestamp", "TIMESTAMP"): ["2026-03-29 02:30:00"],
}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as found:
        yield found


@pytest.mark.parametrize(("theirs", "ours"), VALUES)
def test_value_has_one_text_in_both_databases(server: PostgresServer, theirs: str, ours: str) -> None:
    with psycopg.connect(server.url) as source, closing(memory_database()) as mirror:
        source.execute("set timezone = 'America/New_York'")
        kind = source.execute("select format_type(%s::regtype, null)", (theirs.partition("(")[0],)).fetchone()
        assert kind is not None
        form = FORMS[ours.partition("(")[0]]
        assert kind[0] in form.types
        column = MirroredColumn("v", "v", form, kind[0])
        table = DatabaseTable("public", "t", (column,), ())
        theirs_found, ours_found = list[str](), list[str]()
        for value in VALUES[theirs, ours]:
            text = f"select {table.hashed} from (select %(v)s::{theirs} as v) as t"
            given = source.execute(text.encode(), {"v": value}).fetchone()
            text = f"select {row_hash([column.mirror_text], MIRROR_DIGEST)} from (select ?::{ours} as v)"
            own = mirror.execute(text, [value]).fetchall()[0]
            theirs_found.append(given[0] if given else "")
            ours_found.append(own[0])
        assert theirs_found == ours_found
        assert len(set(ours_found)) == len(ours_found)


def test_what_no_snapshot_sees_is_later() -> None:
    """Of ids around the largest one: ended, open, ended after it, begun after it."""
    moment = Moment(100, 2**32 - 2, 2**32 + 3, (2**32 - 2, 2**32 + 1), 50)
    with closing(memory_database()) as memory:
        ids = [2**32 - 10, 2**32 - 2, 2**32 - 1, 0, 1, 2, 3, 4, 1000]
        found = [memory.execute(f"select {moment.later_sql(str(each))}").fetchall()[0][0] for each in ids]
    assert found == [False, True, False, False, True, False, True, True, True]


def test_transaction_that_ended_last_is_seen_when_none_is_open() -> None:
    moment = Moment(100, 4207, 4207, (), 50)
    with closing(memory_database()) as memory:
        found = [
            memory.execute(f"select {moment.later_sql(str(each))}").fetchall()[0][0] for each in (4205, 4206, 4207)
        ]
    assert found == [False, False, True]


def test_lock_of_another_transaction_is_not_awaited_for_long(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audited_source, "LOCK_SECONDS", 1)
    with psycopg.connect(server.url) as other:
        other.execute("create table locked ()")
        other.execute("select pg_create_physical_replication_slot('any')")
        other.commit()
        with closing(SourceDatabase(server.url, "any")) as database:
            other.execute("lock table locked")
            with pytest.raises(SourceUnusable, match="has locked a table for more than 1 s"):
                database.moment([DatabaseTable("public", "locked", (), ())])
