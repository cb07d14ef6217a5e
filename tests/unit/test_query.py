"""`headrace query`, `tables` and `rejected`: formats, errors, and that nothing can be written or reached."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from decimal import Decimal

import pytest
from small_warehouse import SmallWarehouse, at, bronze_metadata, bronze_row, rejected_row, silver_row

from include.cli import main
from include.ground.delta_log import LOG, commit_name
from include.ground.settings import Settings, load_settings
from include.read.plain_values import excerpt, json_value, text_value

Result = tuple[int, str, str]
Run = Callable[..., Result]
WIDE_SUM = "select sum(amount) as s, count(*) as n, max(sold_at) as t from silver.sales"


@pytest.fixture
def run(settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line on the test's own state folder: exit code, stdout, stderr."""
    monkeypatch.setenv("HEADRACE_STATE", str(settings.state))
    load_settings.cache_clear()

    def call(*arguments: str, stdin: str = "") -> Result:
        monkeypatch.setattr(sys, "argv", ["headrace", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as left:
            main.main()
        printed = capsys.readouterr()
        return int(left.value.code or 0), printed.out, printed.err

    yield call
    load_settings.cache_clear()


@pytest.fixture
def warehouse(settings: Settings) -> SmallWarehouse:
    made = SmallWarehouse(settings)
    values = [b'{"event_id":"a"}', b"\x1b[31m\xff\xfe" + b"x" * 100, None]
    rows = [bronze_row(offset, value) for offset, value in enumerate(values)]
    made.write("bronze", rows, bronze_metadata(0, {0: (0, 3)}))
    made.write("silver", [silver_row(0, "a", sold_at=at(2), amount=Decimal("12345.67"))])
    made.write("rejected", [rejected_row(1, "invalid", "type", "range"), rejected_row(2, "duplicate", "duplicate")])
    made.move(offsets={0: 3})
    return made


def test_json_keeps_every_digit_and_the_zone(run: Run, warehouse: SmallWarehouse) -> None:
    code, out, _ = run("query", WIDE_SUM, "--format", "json")
    assert code == 0
    assert json.loads(out) == [{"s": "12345.67", "n": 1, "t": "2026-03-02T12:00:00Z"}]


def test_csv_has_a_header_and_no_colour(run: Run, warehouse: SmallWarehouse) -> None:
    code, out, _ = run("query", WIDE_SUM, "--format", "csv")
    assert code == 0
    assert list(csv.reader(io.StringIO(out))) == [["s", "n", "t"], ["12345.67", "1", "2026-03-02T12:00:00Z"]]


def test_table_aligns_numbers_right_and_counts_rows(run: Run, warehouse: SmallWarehouse) -> None:
    code, out, _ = run("query", "select 'x' as word, i::bigint as number from range(3) t(i)")
    assert code == 0
    assert "│ x    │      0 │" in out
    assert out.strip().endswith("3 rows")


def test_limited_result_says_that_rows_are_missing(run: Run, warehouse: SmallWarehouse) -> None:
    assert "the first 2 rows" in run("query", "select * from range(3)", "--limit", "2")[1]
    assert len(json.loads(run("query", "select * from range(9)", "--format", "json", "--limit", "4")[1])) == 4
    assert json.loads(run("query", "select * from range(9)", "--format", "json", "--limit", "0")[1]) == []


def test_json_encodes_bytes_nulls_nested_values_and_repeated_names(run: Run, warehouse: SmallWarehouse) -> None:
    sql = 'select value, value, partition from bronze.sales order by "offset"'
    rows = json.loads(run("query", sql, "--format", "json")[1])
    assert rows[0] == {"value": '{"event_id":"a"}', "value_2": '{"event_id":"a"}', "partition": 0}
    assert rows[1]["value"].startswith("G1szMW3/")
    assert rows[2]["value"] is None
    sql = "select reasons from rejected.sales where disposition = 'duplicate'"
    nested = json.loads(run("query", sql, "--format", "json")[1])
    assert nested == [{"reasons": [{"rule": "duplicate", "column": "amount", "detail": "seen by duplicate"}]}]


def test_dash_reads_sql_from_stdin(run: Run, warehouse: SmallWarehouse) -> None:
    code, out, _ = run("query", "-", "--format", "csv", stdin="select 1 as one")
    assert (code, out) == (0, "one\n1\n")


def test_query_joins_two_layers(run: Run, warehouse: SmallWarehouse) -> None:
    sql = 'select b."offset" as o from Bronze.sales b anti join rejected . "sales" r on r._offset = b."offset"'
    assert json.loads(run("query", sql, "--format", "json")[1]) == [{"o": 0}]


def test_unknown_table_lists_the_known_ones(run: Run, warehouse: SmallWarehouse) -> None:
    code, _, err = run("query", "select * from gold.nothing")
    assert code == 2
    assert "nothing does not exist" in err
    assert "Did you mean" not in err, "DuckDB would suggest a table of its own catalog"
    assert "bronze.sales, rejected.sales, silver.sales" in err


@pytest.mark.parametrize("sql", ["selec 1", "select nope from silver.sales", "select cast('x' as int)"])
def test_wrong_query_is_explained(run: Run, warehouse: SmallWarehouse, sql: str) -> None:
    code, out, err = run("query", sql, "--format", "csv")
    assert (code, out) == (2, "")
    assert "the query failed" in err


@pytest.mark.parametrize(
    "sql",
    [
        "drop view silver.sales",
        "insert into silver.sales values (1)",
        "create table x as select 1",
        "select 1; select 2",
        "",
        "set TimeZone = 'Europe/Berlin'",
        "install httpfs",
        "copy (select 1) to 'x.csv'",
    ],
)
def test_only_one_reading_statement_is_accepted(run: Run, warehouse: SmallWarehouse, sql: str) -> None:
    code, out, err = run("query", sql)
    assert (code, out) == (2, "")
    assert "the query was refused" in err


@pytest.mark.parametrize("sql", ["select * from read_text('/etc/hostname')", "select * from 'pyproject.toml'"])
def test_queries_cannot_read_files(run: Run, warehouse: SmallWarehouse, sql: str) -> None:
    assert run("query", sql)[0] == 2


def test_explain_and_pivot_are_accepted(run: Run, warehouse: SmallWarehouse) -> None:
    assert run("query", "explain select * from silver.sales")[0] == 0
    assert run("query", "pivot rejected.sales on disposition using count(*) group by _topic")[0] == 0


def test_tables_command_lists_the_published_tables(run: Run, warehouse: SmallWarehouse) -> None:
    found = json.loads(run("tables", "--json")[1])
    assert [(each["name"], each["rows"], each["files"], each["version"], each["batch"]) for each in found] == [
        ("bronze.sales", 3, 1, 0, 0),
        ("silver.sales", 1, 1, 0, 0),
        ("rejected.sales", 2, 1, 0, 0),
    ]
    assert "bronze.sales" in run("tables")[1]


def test_commands_without_a_publication_name_the_next_command(run: Run) -> None:
    assert run("tables") == (0, "nothing is published yet; start with: headrace up\n", "")
    assert json.loads(run("tables", "--json")[1]) == []
    code, _, err = run("query", "select * from gold.carrier_hours")
    assert code == 2
    assert "none yet" in err
    assert run("rejected", "list")[:2] == (0, "no rejected record matches\n")


def test_rejected_list_shows_reasons_and_an_escaped_payload(run: Run, warehouse: SmallWarehouse) -> None:
    code, out, _ = run("rejected", "list")
    assert code == 0
    assert out.index("sales/0/2") < out.index("sales/0/1")
    assert "type amount seen by type" in out
    assert r"\x1b[31m\xff\xfexxx" in out
    assert "\x1b" not in out
    assert "(null)" in out


def test_rejected_show_names_a_state_once(run: Run, warehouse: SmallWarehouse) -> None:
    code, out, _ = run("rejected", "show", "--dataset", "sales", "0", "2")
    assert code == 0
    assert "sales, partition 0, offset 2, batch 0: duplicate, Kafka timestamp" in out


def test_rejected_list_applies_its_filters(run: Run, warehouse: SmallWarehouse) -> None:
    def offsets(*options: str) -> list[int]:
        return [each["offset"] for each in json.loads(run("rejected", "list", "--json", *options)[1])]

    assert offsets() == [2, 1]
    assert offsets("--limit", "1") == [2]
    assert offsets("--reason", "range") == [1]
    assert offsets("--disposition", "duplicate") == [2]
    assert offsets("--reason", "absent") == []
    code, _, err = run("rejected", "list", "--dataset", "nothing")
    assert code == 2
    assert "dataset 'nothing' is unknown" in err


def test_rejected_summary_counts_each_reason(run: Run, warehouse: SmallWarehouse) -> None:
    found = json.loads(run("rejected", "summary", "--json")[1])
    assert {(each["rule"], each["records"]) for each in found} == {("type", 1), ("range", 1), ("duplicate", 1)}


def test_values_are_formatted_for_json_text_and_excerpts() -> None:
    assert json_value(Decimal("10")) == 10
    assert json_value(Decimal("-1.50")) == "-1.50"
    assert json_value(float("nan")) == "nan"
    assert text_value(None) == ""
    assert text_value(b"\xff") == "/w=="
    assert excerpt(b"a" * 81) == "a" * 79 + "…"
    assert len(excerpt("é".encode() * 200)) <= 80
    assert excerpt(b"a\nb\\") == r"a\nb\\"


def test_query_of_a_table_with_an_empty_commit_file_fails(run: Run, warehouse: SmallWarehouse) -> None:
    warehouse.write("silver", [silver_row(3, "b", batch=1)])
    warehouse.move(1, offsets={0: 4})
    (warehouse.names["silver.sales"] / LOG / commit_name(1)).write_bytes(b"")
    code, out, error = run("query", "select count(*) from silver.sales")
    assert (code, out) == (2, "")
    assert "version 1 is published but cannot be opened" in error
