"""Statements that try to write, to read elsewhere, to run for ever or to fill the memory, in the SQL box's process.

The others run with `-m extended`: each function that DuckDB lists, called with large values.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import duckdb
import psutil
import pytest
from small_warehouse import SmallWarehouse, silver_row

from include.ground.errors import HeadraceError
from include.ground.settings import Settings
from include.read.limited_query import (
    AT_ONCE_EACH,
    MARGIN_BYTES,
    QUERIES,
    WORKER,
    QueriesBusy,
    QueryLimits,
    QueryPool,
    QueryProcess,
    limited_query,
    memory_bytes,
)
from include.read.memory_database import memory_database
from include.read.published_sql import QueryFailed, QueryRefused, validate_reading
from include.read.published_tables import PinnedTables, pinned

LIMITS = QueryLimits(1.0, memory="200MB", rows=100)
# Python with DuckDB, Arrow and delta-rs, before a statement.
IDLE_BYTES = 300 * 2**20
PARTS = 20
SECRET = "the secret of the test"
WRITES = (
    "copy (select 1) to '{written}'",
    "copy silver.sales to '{written}' (format parquet)",
    "copy (select 1) to '{written}' (partition_by (a))",
    "copy silver.sales from '{secret}'",
    "explain analyze copy (select 1) to '{written}'",
    "explain analyze copy (select 1) to (current_setting('temp_directory') || '/evil.csv')",
    "explain (analyze) copy (select 1) to '{written}'",
    "explain (analyze, format json) copy (select 1) to '{written}'",
    "/* x */ explain -- y\n analyze copy (select 1) to '{written}'",
    "explain analyse copy (select 1) to '{written}'",
    "with t as (copy (select 1) to '{written}') select * from t",
    "with t as materialized (copy (select 1) to (current_setting('temp_directory') || '/e.csv')) select 1",
    "explain analyze with t as (copy (select 1) to '{written}') select 1",
    "select (with t as (copy (select 1) to '{written}') select 1)",
    "with t as (copy (select 1) to '{written}') pivot (select 1 a, 2 b) on a using sum(b)",
    "with t as (insert into silver.sales select * from silver.sales returning 1) select * from t",
    "with t as (delete from silver.sales returning 1) select * from t",
    "with t as (update silver.sales set id = 1 returning 1) select * from t",
    "select * from query('copy (select 1) to ''{written}''')",
    "select * from json_execute_serialized_sql(json_serialize_sql('with t as (copy x to ''{written}'') from t'))",
    "from main.\"query\"('select * from JSON_execute_serialized_sql(json_serialize_sql(''{written}''))')",
    "select * from query_table('{secret}')",
    "export database '{written}'",
    "import database '{written}'",
    "copy from database memory to other",
    "attach '{written}' as other",
    "attach '{secret}' (type sqlite)",
    "detach memory",
    "use silver",
    *("install httpfs", "load httpfs", "force install json from '{written}'", "update extensions"),
    *("set temp_directory = '{written}'", "set enable_external_access = true", "reset temp_directory"),
    *("set home_directory = '{written}'", "set log_query_path = '{written}'", "set profiling_output = '{written}'"),
    "pragma enable_profiling = 'json'",
    "pragma profiling_output = '{written}'",
    "pragma enable_external_access",
    *("call pragma_version()", "call enable_logging(storage = 'file')", "call checkpoint()"),
    *("create table t as select 1", "create or replace view v as select 1", "create schema s", "create type e as int"),
    *("create macro f(a) as a", "create temp table t as select range from range(1000000)", "create sequence s"),
    "create persistent secret s (type s3, key_id 'a', secret 'b')",
    *(
        "insert into silver.sales select * from silver.sales",
        "update silver.sales set id = 1",
        "delete from silver.sales",
    ),
    "merge into silver.sales using silver.sales s on true when matched then delete",
    *(
        "drop schema silver cascade",
        "alter table silver.sales rename to x",
        "truncate silver.sales",
        "vacuum",
        "analyze",
    ),
    *("checkpoint", "force checkpoint", "begin", "rollback", "prepare p as select 1", "execute p", "deallocate p"),
    *("comment on schema silver is 'x'", "set variable x = 1", "select 1; copy (select 1) to '{written}'", ";", "--"),
    "explain analyze create table t as select range from range(100000000)",
    "explain analyze insert into silver.sales select * from silver.sales",
    "explain analyze attach '{written}'",
    "explain analyze export database '{written}'",
)
READS = (
    *(f"select * from {name}('{{secret}}')" for name in ("read_csv", "read_text", "read_blob", "read_json", "glob")),
    *(f"select * from {name}('{{secret}}')" for name in ("read_parquet", "parquet_metadata", "sniff_csv", "read_xlsx")),
    *("select * from '{secret}'", "from '{secret}'", "select * from '/proc/self/environ'", "summarize '{secret}'"),
    "select * from read_text('/etc/passwd')",
    "select * from read_text('file:///etc/passwd')",
    "select * from read_text('http://127.0.0.1:1/x')",
    "select * from read_parquet('s3://bucket/x')",
    "select * from query('select * from read_text(''{secret}'')')",
    "select * from delta_scan('{secret}')",
    "select * from sqlite_scan('{secret}', 't')",
    "select getenv('HOME')",
    "with t as (select * from read_text('{secret}')) select * from t",
    "select (select content from read_text('{secret}'))",
    "select * from duckdb_secrets()",
    "select * from arrow_scan(1, 2, 3)",
    "select * from sniff_csv('/etc/passwd')",
    "select * from glob('/*')",
)
ENDLESS = (
    "select count(*) from range(1000000000000)",
    "select count(*) from range(100000000000) a, range(1000) b",
    "select length(repeat('a', 1000000000))",
    "select repeat('a', 400000000)",
    "select levenshtein(repeat('a', 100000), repeat('b', 100000))",
    "select damerau_levenshtein(repeat('a', 50000), repeat('b', 50000))",
    "select jaro_winkler_similarity(repeat('ab', 500000), repeat('ba', 500000))",
    "select regexp_matches(repeat('a', 10000000), '(a*)*b')",
    "select regexp_replace(repeat('a', 20000000), 'a', 'bbbbbbbbbbbbbbbb', 'g')",
    "with recursive t as (select 1 n union all select n + 1 from t) select count(*) from t",
    "with recursive t as (select 1 n union all select n + 1 from t) select n from t order by n desc",
    "select range from range(1000000000) order by hash(range)",
    "select list(range) from range(1000000000)",
    "select string_agg(repeat('x', 10000), '') from range(10000000)",
    "select list_sort(range(100000000))",
    "select list_distinct(range(50000000))",
    "select range(1000000000)",
    "select list_transform(range(100000000), lambda x: md5(x::varchar))",
    "select unnest(range(1000000000))",
    "select count(distinct hash(a.range, b.range)) from range(1000000) a, range(1000) b",
    "select a.range % 1000 k, count(*) from range(100000000000) a group by k",
    "select lpad('a', 1000000000, 'b')",
    "select bar(1, 0, 10, 100000000)",
    "select 10::hugeint ** 1000000",
    "select factorial(100000)",
    "select sum(a.range * b.range) over (order by a.range) from range(1000000) a, range(1000) b",
    "select median(range) from range(10000000000)",
    "select histogram(range) from range(1000000000)",
    "explain analyze select count(*) from range(100000000000) a, range(1000) b",
    "pivot (select range a, range b from range(10000000)) on a using sum(b)",
    "select * from generate_series(1, 1000000000000) order by 1 desc",
    "select array_to_string(range(100000000), ',')",
    f"select {'(' * 5000}1{')' * 5000}",
    f"select {'+'.join(['1'] * 9000)}",
)
VALUES = {
    "VARCHAR": "repeat('ab', 300000)",
    "BLOB": "repeat('ab', 300000)::blob",
    "BOOLEAN": "true",
    "DATE": "date '2020-01-01' + range::int",
    "TIMESTAMP": "timestamp '2020-01-01' + to_seconds(range)",
    "INTERVAL": "interval 1 second",
    "DOUBLE": "1e15 + range",
    "BIGINT": "1000000000 + range",
    "INTEGER": "1000000 + range::int",
}


def calls_of_all_functions() -> Sequence[str]:
    """A statement for each function of DuckDB, with large values for the parameters of its first form."""
    sql = """
        select function_name, function_type, first(parameter_types) from duckdb_functions()
        where regexp_full_match(function_name, '[a-z_][a-z0-9_]*') group by all order by all
    """
    with closing(memory_database(spills=False)) as database:
        found = database.execute(sql).fetchall()
    return [call(name, kind, types) for name, kind, types in found]


def call(name: str, kind: str, types: Sequence[str | None]) -> str:
    arguments = ", ".join(value_of(each or "") for each in types)
    if kind in ("table", "table_macro", "pragma"):
        return f"select count(*) from {name}({arguments.replace('range', '1')})"
    return f"select {name}({arguments}) from range(100000000)"


def value_of(kind: str) -> str:
    if kind.endswith("[]") or "LIST" in kind:
        return "range(3000000)"
    return VALUES.get(kind, next((value for name, value in VALUES.items() if kind.startswith(name)), VALUES["BIGINT"]))


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> PinnedTables:
    settings = Settings(state=tmp_path_factory.mktemp("hostile") / "state")
    warehouse = SmallWarehouse(settings)
    warehouse.write("silver", [silver_row(n, f"e{n}") for n in range(3)])
    warehouse.move()
    (settings.state.parent / "secret.txt").write_text(SECRET)
    return pinned(settings)


def folder_of(reading: PinnedTables) -> Path:
    return next(parent for parent in reading.table("silver.sales").path.parents if (parent / "secret.txt").exists())


def files(folder: Path) -> set[Path]:
    return {*folder.rglob("*"), *Path("/").iterdir(), *Path.cwd().iterdir(), *Path.home().glob(".duckdb*")}


def attempt(reading: PinnedTables, sql: str) -> str:
    """Run a statement; return what it said or showed."""
    folder = folder_of(reading)
    text = sql.replace("{written}", str(folder / "written")).replace("{secret}", str(folder / "secret.txt"))
    # The box still answers, by a process that has started.
    assert limited_query(reading, "select count(*) from silver.sales", QueryLimits(30.0)).rows == [(3,)]
    began = time.monotonic()
    try:
        shown = str(limited_query(reading, text, LIMITS).rows)
    except HeadraceError as error:
        shown = f"refused: {error}"
    assert time.monotonic() - began < LIMITS.seconds + 2, sql
    assert SECRET not in shown, sql
    assert "root:" not in shown, sql
    return shown


def attempt_all(reading: PinnedTables, statements: Sequence[str]) -> Sequence[str]:
    """Run statements, and verify that they left no file, that the box still answers and what memory they took."""
    before, peaks, end = files(folder_of(reading)), list[int](), QueryProcess.end

    def measured(process: QueryProcess) -> None:
        peaks.append(peak_bytes(process.process.pid))
        end(process)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QueryProcess, "end", measured)
        shown = [attempt(reading, sql) for sql in statements]
        assert limited_query(reading, "select count(*) from silver.sales", QueryLimits(30.0)).rows == [(3,)]
        assert files(folder_of(reading)) == before
        QUERIES.end()
    assert 0 < max(peaks) < IDLE_BYTES + memory_bytes(LIMITS.memory) + MARGIN_BYTES
    return shown


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process has used; 0 of one that has ended by itself."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def test_no_statement_writes(reading: PinnedTables) -> None:
    shown = attempt_all(reading, WRITES)
    assert [sql for sql, text in zip(WRITES, shown, strict=True) if not text.startswith("refused: ")] == []


@pytest.mark.parametrize("sql", [sql for sql in WRITES if "{written}" in sql or "explain" in sql])
def test_statement_that_writes_is_refused_before_it_runs(sql: str) -> None:
    """Also for commands and programs, whose statements run in their own process, with a folder to spill into."""
    with pytest.raises((QueryRefused, duckdb.Error)):
        validate_reading(sql)


@pytest.mark.parametrize(
    "sql",
    [
        *("select 1", "from range(3)", "values (1)", "describe select 1", "show tables", "summarize select 1"),
        *("explain select 1", "explain analyze select 1", "/* a */ EXPLAIN -- b\n ANALYZE select 'copy'", "(select 1)"),
        *("pivot (select 1 a, 2 b) on a using sum(b)", "explain pivot (select 1 a, 2 b) on a using sum(b)"),
        "with recursive t as (select 1 n union all select n + 1 from t where n < 3) select * from t",
        "select 1 union all select 2 order by 1",
        "with copy as (select 1 as update) select update from copy",
        "select 'copy (select 1) to x' as insert",
    ],
)
def test_statement_that_reads_is_not_refused(sql: str) -> None:
    validate_reading(sql)


def test_no_statement_reads_elsewhere(reading: PinnedTables) -> None:
    shown = attempt_all(reading, READS)
    read = [sql for sql, text in zip(READS, shown, strict=True) if not text.startswith("refused: ")]
    assert read == []


def test_no_statement_runs_on_or_fills_the_memory(reading: PinnedTables) -> None:
    attempt_all(reading, ENDLESS[::8])


@pytest.mark.extended
@pytest.mark.parametrize("part", range(PARTS))
def test_every_endless_statement_and_every_function_of_duckdb(reading: PinnedTables, part: int) -> None:
    statements = [*ENDLESS, *calls_of_all_functions()]
    assert len(statements) > 1000
    shown = attempt_all(reading, statements[part::PARTS])
    ended = sum("ran longer than" in text for text in shown)
    full = sum("more memory than its limit" in text for text in shown)
    answered = sum(not text.startswith("refused: ") for text in shown)
    print(f"\n{len(shown)} statements: {answered} answered, {ended} ended at the deadline, {full} out of memory")


def test_slow_statements_of_a_user_keep_nobody_from_querying(reading: PinnedTables) -> None:
    slow = [threading.Thread(target=attempt_as, args=(reading, "eve")) for _ in range(8)]
    for each in slow:
        each.start()
    try:
        while QUERIES.running["eve"] < AT_ONCE_EACH:
            time.sleep(0.01)
        assert limited_query(reading, "select 1", QueryLimits(10.0), "ann").rows == [(1,)]
        assert QUERIES.running["eve"] == AT_ONCE_EACH, "nobody waited for them"
    finally:
        while any(each.is_alive() for each in slow):
            end_workers()
            time.sleep(0.05)


def attempt_as(reading: PinnedTables, who: str) -> None:
    try:
        limited_query(reading, ENDLESS[1], QueryLimits(60.0), who)
    except HeadraceError:
        return


def end_workers() -> None:
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if WORKER in child.cmdline():
                child.kill()


def test_users_statements_beyond_their_share_are_refused_in_words(reading: PinnedTables) -> None:
    pool = QueryPool()
    pool.running["eve"], pool.waiting["eve"] = 3, 6
    with pytest.raises(QueriesBusy, match="your other queries"), pool.process("eve"):
        pass
    pool.running["bob"], pool.waiting["bob"] = 1, 6
    with pytest.raises(QueriesBusy, match="queries of others"), pool.process("ann"):
        pass


def test_statements_without_a_process_leave_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = QueryPool()

    def fails(*command: object, **how: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr("include.read.limited_query.subprocess.Popen", fails)
        for _ in range(4):
            with pytest.raises(QueriesBusy, match="no process could be started"), pool.process("ann"):
                pass
    with pool.process("ann") as taken:
        assert taken.is_usable
    pool.end()


def test_process_that_ends_otherwise_is_not_said_to_lack_memory(
    reading: PinnedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("include.read.limited_query.QUERIES", QueryPool())
    monkeypatch.setattr("include.read.limited_query.WORKER", "include.no_such_module")
    with pytest.raises(QueryFailed, match="did not start .*exit code 1"):
        limited_query(reading, "select 1", QueryLimits(10.0))


def test_statement_of_many_terms_is_read(reading: PinnedTables) -> None:
    sql = f"select {'+'.join(['1'] * 900)}"
    assert limited_query(reading, sql, QueryLimits(10.0)).rows == [(900,)]
    validate_reading(sql)


def test_killed_process_is_replaced(reading: PinnedTables) -> None:
    assert limited_query(reading, "select 1", QueryLimits(10.0)).rows == [(1,)]
    for each in QUERIES.idle:
        each.process.kill()
        each.process.wait()
    assert limited_query(reading, "select 2", QueryLimits(10.0)).rows == [(2,)]


def test_process_of_statements_ends_with_the_process_that_started_it(reading: PinnedTables) -> None:
    pool = QueryPool()
    with pool.process("ann") as taken:
        pass
    taken.pipe.close()
    assert taken.process.wait(30) == 0
    pool.end()


@pytest.fixture(autouse=True, scope="module")
def ended_processes() -> Iterator[None]:
    yield
    QUERIES.end()
