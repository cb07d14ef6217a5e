"""Queries of the console: nothing outside the published tables can be read, and none runs for long."""

from __future__ import annotations

from pathlib import Path

import pytest
from error_codes import raises
from small_warehouse import SmallWarehouse, silver_row

from include.ground.errors import Terminal
from include.ground.settings import Settings
from include.read.limited_query import QueryLimits, limited_query
from include.read.published_sql import QueryFailed
from include.read.published_tables import pinned
from include.serve.tables import MOST_ROWS, query_view


@pytest.fixture
def published(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr("include.read.memory_database.load_settings", lambda: settings)
    warehouse = SmallWarehouse(settings)
    warehouse.write("silver", [silver_row(n, f"e{n}") for n in range(3)])
    warehouse.move()
    return settings


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('{file}')",
        "select * from read_text('{file}')",
        "select * from read_blob('{file}')",
        "select * from '{file}'",
        "select * from glob('/*')",
        "select * from parquet_metadata('{file}')",
        "select * from sniff_csv('{file}')",
        "select * from query('select * from read_text(''{file}'')')",
        "select content from read_text('http://127.0.0.1:1/x')",
        "copy (select 1) to '{written}'",
        "explain analyze copy (select 1) to '{written}'",
        "attach '{written}' as other",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "pragma enable_external_access",
        "select 1; select * from read_text('{file}')",
        "export database '{written}'",
        "create table t as select 1",
        "insert into silver.sales select * from silver.sales",
        "call pragma_version()",
        "select getenv('HOME')",
        "with t as (select * from read_text('{file}')) select * from t",
    ],
)
def test_query_reaches_no_file_and_no_network(published: Settings, tmp_path: Path, sql: str) -> None:
    secret, written = tmp_path / "secret.txt", tmp_path / "written"
    secret.write_text("the secret")
    found = query_view(published, sql.format(file=secret, written=written))
    assert found.problem
    assert found.found is None
    assert "the secret" not in found.problem
    assert not written.exists()


def test_settings_of_the_database_cannot_be_changed_in_a_query(published: Settings) -> None:
    found = query_view(published, "select set_config('enable_external_access', 'true', false)")
    assert found.found is None
    shown = query_view(published, "select current_setting('enable_external_access') as allowed")
    assert shown.found is not None
    assert shown.found.rows == [["false"]]


def test_long_query_is_ended(published: Settings) -> None:
    endless = "select count(*) from range(100000000000) a, range(1000) b"
    with raises(Terminal, "query-timed-out", match="ran longer than 0.3 s"):
        limited_query(pinned(published), endless, QueryLimits(0.3))


def test_query_that_needs_too_much_memory_fails(published: Settings) -> None:
    sql = "select string_agg(a.range::varchar || repeat('x', 1000), '') from range(2000000) a"
    with pytest.raises(QueryFailed, match="more memory than its limit, 50MB"):
        limited_query(pinned(published), sql, QueryLimits(60.0, memory="50MB"))


def test_memory_that_duckdb_does_not_count_is_limited_too(published: Settings) -> None:
    """The text of a gigabyte is a value of a function, not of a table or an operator."""
    with pytest.raises(QueryFailed, match="more memory than its limit"):
        limited_query(pinned(published), "select length(repeat('a', 1000000000))", QueryLimits(60.0, memory="50MB"))


def test_shortened_result_is_marked_as_shortened(published: Settings) -> None:
    found = query_view(published, "select range as n, repeat('x', 5000) as text from range(100000)").found
    assert found is not None
    assert (len(found.rows), found.is_cut, len(found.rows[0][1])) == (MOST_ROWS, True, 1001)


def test_query_over_published_tables_answers(published: Settings) -> None:
    found = query_view(published, "select count(*) as n from silver.sales").found
    assert found is not None
    assert (found.rows, found.numbers, found.is_cut) == ([["3"]], [0], False)
