"""What `audit --source` does not compare, it names: another release, records that name no table, another database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from small_warehouse import BRONZE, NOON, bronze_row

from include.audit.kafka import Topic
from include.audit.mirror import MirrorResult, mirror_audits
from include.audit.source import Moment, SourceUnusable
from include.declare.dataset import snapshot_dataset
from include.ground.paths import bronze_path, gold_path, silver_path, warehouse
from include.ground.settings import Settings
from include.read.publication import Publication, TableVersion, publish

CONTRACT = """
apiVersion: v3.1.0
kind: DataContract
name: bank
version: 1.0.0
schema:
  - name: bank
    logicalType: object
    properties:
      - {name: aid, logicalType: integer, required: true, primaryKey: true}
      - {name: balance, logicalType: integer}
      - {name: at, logicalType: timestamp, required: true}
"""
PIPELINE = """
topic: bank
envelope: debezium
event_time: at
lateness: 1 day
identity: {columns: [aid, sequence, op], horizon: 7 days}
changes: {keys: [aid], sequence: [sequence]}
gold:
  accounts: {kind: changes, columns: {balance: balance}}
  balances: {kind: changes, columns: {balance: balance}, refresh: every 1 minute}
"""
RECORD = b'{"source": {"connector": "postgresql", "db": "shop", "schema": "public", "table": "accounts", "lsn": 7}}'


class EmptyDatabase:
    """The database `shop` with an empty table, whose connector has sent everything."""

    name, slot = "shop", "headrace"

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._meanwhile = meanwhile

    def columns_of(self, *_: str) -> Mapping[str, str]:
        return {"aid": "bigint", "balance": "bigint"}

    def moment(self, _: Sequence[Any]) -> Moment:
        self._meanwhile()
        return Moment(9, 1, 2, (), 9)

    counted = list[tuple[int, int, int]]()

    def ranges(self, *_: Any) -> list[tuple[int, int, int]]:
        return self.counted

    def rows(self, *_: Any) -> list[Any]:
        return []

    def mark(self) -> int:
        return 9

    confirmed = mark


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    folder = tmp_path / "datasets" / "bank"
    folder.mkdir(parents=True)
    (folder / "contract.yaml").write_text(CONTRACT)
    (folder / "pipeline.yaml").write_text(PIPELINE)
    return Settings(state=tmp_path / "state", datasets=folder.parent)


def published(settings: Settings, *values: bytes) -> Publication:
    """Publish bronze with these records, and empty mirrors."""
    release = snapshot_dataset(settings, "bank").release
    mirror = pa.schema([("aid", pa.int64()), ("balance", pa.int64())])
    bronze = pa.Table.from_pylist([bronze_row(n, value) for n, value in enumerate(values)], schema=BRONZE)
    written: dict[str, tuple[Path, pa.Table]] = {"bronze.bank": (bronze_path(settings, "bank"), bronze)}
    changed = [("_partition", pa.int32()), ("_offset", pa.int64()), ("_batch_id", pa.int64()), ("sequence", pa.int64())]
    of_record = {"_partition": 0, "_batch_id": 0, "sequence": 9}
    places = [{**of_record, "_offset": n} for n, value in enumerate(values) if value == RECORD]
    silver = pa.Table.from_pylist(places, schema=pa.schema(changed))
    written["silver.bank"] = (silver_path(settings, "bank", release), silver)
    for name in ("accounts", "balances"):
        written[f"gold.{name}"] = (gold_path(settings, "bank", release, name), mirror.empty_table())
    tables = dict[str, TableVersion]()
    for name, (path, rows) in written.items():
        write_deltalake(str(path), rows)
        tables[name] = TableVersion(str(path.relative_to(warehouse(settings))), DeltaTable(str(path)).version())
    publication = Publication("bank", release, 0, NOON, {0: len(values)}, tables)
    publish(settings, publication)
    return publication


def audited(settings: Settings, database: EmptyDatabase, end: int = 1) -> MirrorResult:
    def topic(name: str) -> Topic:
        return Topic(name, "T1", {0: 0}, {0: end}, lambda *_: iter(()))

    given: Any = database
    return mirror_audits(settings, given, ["bank", "other"], topic)["bank"]


def reasons(result: MirrorResult) -> list[str]:
    return [f"{each.table}: {each.reason}" for each in result.unchecked]


def test_records_that_are_no_objects_do_not_end_an_audit(settings: Settings) -> None:
    """Neither where it looks for their table, nor where it looks for changes after the moment."""
    values = (RECORD, b"null", b"5", b"[1]", b"{", b"\xff", b'"text"', b'{"payload": null}', b'{"source": "x"}', RECORD)
    published(settings, *values)
    database = EmptyDatabase()
    database.counted = [(0, 1, 1)]
    found = audited(settings, database, len(values))
    assert ([each.table for each in found.checks], found.unchecked) == (["gold.accounts", "gold.balances"], [])


def test_dataset_whose_records_name_no_table_is_not_checked(settings: Settings) -> None:
    published(settings, b"\x00\x00\x00\x00\x01avro")
    found = audited(settings, EmptyDatabase())
    said = "no record at the beginning of bronze names a table of PostgreSQL in JSON"
    assert (found.checks, [each.table for each in found.unchecked]) == ([], ["gold.accounts", "gold.balances"])
    assert all(said in each for each in reasons(found))


def test_dataset_of_another_database_is_not_checked(settings: Settings) -> None:
    published(settings, RECORD.replace(b"shop", b"bank"))
    assert "about the database bank, not shop" in reasons(audited(settings, EmptyDatabase()))[0]


def test_release_that_was_promoted_meanwhile_is_not_compared(settings: Settings) -> None:
    """The mirrors were read as the release before declares them."""
    before = published(settings, RECORD)
    later = replace(before, release="fedcba987654", batch=1)
    found = audited(settings, EmptyDatabase(lambda: publish(settings, later)))
    assert found.checks == []
    assert len(found.unchecked) == 2
    assert f"release fedcba987654 took the place of {before.release}" in reasons(found)[0]


def test_table_that_is_no_mirror_may_be_behind(settings: Settings) -> None:
    found = published(settings, RECORD)
    behind = {**found.tables, "gold.others": replace(found.tables["gold.accounts"], batch=0)}
    publish(settings, replace(found, tables=behind))
    assert len(audited(settings, EmptyDatabase()).checks) == 2


def test_database_that_fails_leaves_the_tables_unchecked(settings: Settings) -> None:
    def fail() -> None:
        raise SourceUnusable("the source went away", "start it")

    published(settings, RECORD)
    found = audited(settings, EmptyDatabase(fail))
    assert (found.checks, len(found.unchecked)) == ([], 2)
