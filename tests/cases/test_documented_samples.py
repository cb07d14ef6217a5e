"""Records that others document stream through the folders that `headrace new` makes of them.

`samples/` has records of the shapes in the documentation of Debezium, CloudEvents, GitHub's webhooks and AWS
CloudTrail, with values of our own. The oracle knows JSON alone: each value of an accepted record is in its row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs
import pytest
from pyspark.sql import SparkSession
from small_release import Record, SmallRelease, small_release
from test_recomputed_history import differing as differences_of
from typer.testing import CliRunner

from include.cli import folder as new_command
from include.cli.main import app
from include.ground.settings import Settings

SAMPLES = Path(__file__).with_name("samples")
Json = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """`file`: its records. `more`: records that are rejected, each with the reasons.

    `converted`: columns that silver.py makes. `keyed`: the first record, sent again, is a duplicate.
    """

    file: str
    more: Sequence[tuple[bytes | None, list[tuple[str, str]]]] = ()
    converted: Sequence[str] = ()
    keyed: bool = True
    backends: Sequence[str] = ("local",)


BOTH = ("local", "spark")
NO_ROW = b'{"before":null,"after":null,"source":{"lsn":1},"op":"c","ts_ms":1777620000000}'
OF_DEBEZIUM = [(None, [("tombstone", "")]), (b'{"op":1}', [("type", "op")])]
CASES = (
    Sample(
        "debezium_postgres",
        more=[*OF_DEBEZIUM, (NO_ROW, [("missing_id", "id")])],
        converted=("changed_at",),
        backends=BOTH,
    ),
    Sample("debezium_postgres_with_schema", more=OF_DEBEZIUM, converted=("changed_at",)),
    Sample("debezium_mysql", more=OF_DEBEZIUM, converted=("changed_at",)),
    Sample("cloudevents", more=[(b'{"id":null,"time":"2026-05-01T17:31:00Z"}', [("missing_id", "id")])]),
    Sample("cloudevents_of_objects", more=[(b'{"id":"x","time":"yesterday"}', [("bad_ts", "time")])]),
    Sample(
        "github_push",
        more=[(b'{"repository":7,"ref":"x"}', [("type", "repository"), ("type", "repository_updated_at")])],
    ),
    Sample(
        "github_pull_request",
        more=[(b"{}", [("missing_id", "number"), ("missing_id", "pull_request_updated_at")])],
    ),
    Sample(
        "cloudtrail",
        more=[(b'{"eventID":"x","eventTime":"2026-05-01T07:01:05"}', [("no_zone", "event_time")])],
        backends=BOTH,
    ),
    Sample(
        "cloudtrail_files",
        more=[(b'{"Records":{}}', [("type", "records")])],
        converted=("event_time",),
        keyed=False,
    ),
)
OF_EACH_KIND = ("debezium_postgres", "cloudevents", "github_pull_request", "cloudtrail")
RUNS = [
    pytest.param(
        case,
        backend,
        id=f"{case.file}-{backend}",
        marks=[pytest.mark.extended] * (backend == "spark" or case.file not in OF_EACH_KIND),
    )
    for case in CASES
    for backend in case.backends
]


def column(member: str) -> str:
    """Return what a member is called as a column."""
    words = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", re.sub(r"([A-Z])([A-Z][a-z])", r"\1_\2", member))
    return re.sub(r"[^A-Za-z0-9]+", "_", words).strip("_").lower()


def parsed(text: str | bytes) -> Any:
    return json.loads(text, parse_float=Decimal)


def differing(found: Any, given: Any, path: str = "") -> Iterator[str]:
    """Yield where a value of silver is not the one of the record."""
    if given is None or found is None:
        if found is not None or (given not in (None, {}, []) and not is_empty(given)):
            yield f"{path}: {found!r} is not {given!r}"
    elif isinstance(found, str) and (not isinstance(given, str) or found != given):
        if parsed(found) != given:
            yield f"{path}: {found!r} is not {given!r}"
    elif isinstance(given, dict):
        columns = {column(name): value for name, value in given.items()}
        for name in found.keys() | columns.keys():
            yield from differing(found.get(name), columns.get(name), f"{path}.{name}")
    elif isinstance(given, list):
        if len(found) != len(given):
            yield f"{path}: {len(found)} elements are not {len(given)}"
        for number, (one, other) in enumerate(zip(found, given, strict=False)):
            yield from differing(one, other, f"{path}[{number}]")
    elif isinstance(found, datetime):
        if found != datetime.fromisoformat(given):
            yield f"{path}: {found} is not {given}"
    elif isinstance(found, Decimal) or isinstance(given, Decimal):
        if Decimal(found) != Decimal(given):
            yield f"{path}: {found} is not {given}"
    elif found != given or isinstance(found, bool) != isinstance(given, bool):
        yield f"{path}: {found!r} is not {given!r}"


def is_empty(given: Any) -> bool:
    """Return whether a value has nothing but nulls inside."""
    inside = given.values() if isinstance(given, dict) else given if isinstance(given, list) else [given]
    return all(each is None or (isinstance(each, dict | list) and is_empty(each)) for each in inside)


def inside(value: Json, around: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values inside of objects, each with the name that its own column would have."""
    for member, each in value.items():
        name = f"{around}_{column(member)}".lstrip("_")
        yield name, each
        if isinstance(each, dict):
            yield from inside(each, name)


def row_of(record: Json, converted: Sequence[str]) -> Json:
    """Return what silver has of a record."""
    change = record.get("payload", record)
    if "op" not in change:
        return record
    source, at = change["source"], datetime.fromtimestamp(change["ts_ms"] / 1000, UTC).isoformat()
    place = {"binlog_file": source["file"], "binlog_position": source["pos"]} if "file" in source else {}
    facts = {"op": change["op"], "ts_ms": change["ts_ms"], "sequence": source.get("lsn"), "changed_at": at}
    return {**(change["after"] or change["before"] or {}), **facts, **place}


def made_folder(case: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that `headrace new` makes of the sample."""
    settings = Settings(state=tmp_path / "new", datasets=tmp_path / "datasets")
    monkeypatch.setattr(new_command, "load_settings", lambda: settings)
    made = CliRunner().invoke(app, ["new", case.file, "--from", str(SAMPLES / f"{case.file}.jsonl")])
    assert made.exit_code == 0, made.output
    return settings.datasets / case.file


def assert_silver_has(release: SmallRelease, records: Sequence[Json], converted: Sequence[str]) -> None:
    rows = release.silver().to_dicts()
    assert len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        given = row_of(record, converted)
        own = {name: value for name, value in row.items() if not name.startswith("_")}
        apart = dict(inside(given))
        known = {column(member) for member in given}
        lifted = {name: own.pop(name) for name in [*own] if name not in known}
        assert list(differing(own, given)) == [], record
        for name in lifted.keys() - {*converted}:
            assert list(differing(lifted[name], apart.get(name), name)) == []


def table_after(changes: Sequence[Json]) -> dict[int, Json]:
    """Return the rows of a table after its changes, by `id`."""
    rows: dict[int, Json] = {}
    for change in changes:
        if change["op"] == "t":
            rows.clear()
        elif change["op"] == "d":
            del rows[change["before"]["id"]]
        else:
            rows[change["after"]["id"]] = change["after"]
    return rows


def assert_gold_has(release: SmallRelease, records: Sequence[Json]) -> None:
    name, changes = release.dataset.name, [record.get("payload", record) for record in records]
    if "op" not in changes[0]:
        assert release.read(f"gold.{name}_days")["records"].sum() == len(records)
        return
    found, rows = release.read(f"gold.{name}_rows").drop(cs.starts_with("_")), table_after(changes)
    assert found.height == len(rows)
    assert [each for row in found.to_dicts() for each in differing(row, rows[row["id"]])] == []


@pytest.mark.parametrize(("case", "backend"), RUNS)
def test_each_record_is_in_silver_with_its_values_or_rejected_with_the_reason(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Sample, backend: str
) -> None:
    folder = made_folder(case, tmp_path, monkeypatch)
    release = small_release(spark, Settings(state=tmp_path / "state", backend=backend), case.file, folder)
    lines = (SAMPLES / f"{case.file}.jsonl").read_bytes().splitlines()
    again = [Record(lines[0])] if case.keyed else []
    release.take([*map(Record, lines), *again, *(Record(value) for value, _ in case.more)])
    records = [parsed(line) for line in lines]
    assert_silver_has(release, records, case.converted)
    assert_gold_has(release, records)
    rejected = [
        [(each["rule"], each["column"]) for each in row["reasons"]]
        for row in release.rejected().filter(pl.col("disposition") != "duplicate").to_dicts()
    ]
    assert rejected == [reasons for _, reasons in case.more]
    assert release.rejected().height == len(again) + len(case.more)


def test_records_without_a_key_and_a_time_count_each(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    case = next(each for each in CASES if not each.keyed)
    folder, lines = made_folder(case, tmp_path, monkeypatch), (SAMPLES / f"{case.file}.jsonl").read_bytes().splitlines()
    release = small_release(spark, Settings(state=tmp_path / "state", backend=backend), case.file, folder)
    for _ in range(2):
        release.take([Record(line, partition=number % 2) for number, line in enumerate(lines)])
    silver = release.silver()
    assert (silver.height, release.rejected().height) == (2 * len(lines), 0)
    assert silver["event_time"].to_list() == silver["_timestamp"].to_list()
    assert differences_of(release) == {}
