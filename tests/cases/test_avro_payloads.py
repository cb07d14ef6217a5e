"""Records in Avro: two schemas in one batch, damaged ones rejected with a reason, rebuilds without the registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from avro_trades import FIRST, SECOND, SIDE, encoded, first_trade, schema_text, second_trade, trades_folder
from pyspark.sql import SparkSession
from registry_stand_in import StandIn, registry_stand_in
from slice_patcher import SlicePatcher
from small_release import Record, SmallRelease, small_release
from test_recomputed_history import differing

from include.declare.history_slice import BRONZE, Slice, Span
from include.declare.writer_schemas import known_schemas
from include.ground.errors import Terminal
from include.ground.schema_registry import RegistryNotSet, RegistryUnreachable
from include.ground.settings import Settings
from include.read.publication import read_publication
from spark_jobs.backends.local.runs import NextRun
from spark_jobs.backends.local.validation import begin_full_validation
from spark_jobs.backends.release import pinned_release
from spark_jobs.history.recompute_history import recompute_history

HISTORY = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])
UNKNOWN = b"\x00\x00\x00\x03\xe7"


@dataclass
class Trades:
    """A release of `trades`, and the registry that it asks."""

    release: SmallRelease
    registry: StandIn

    def take(self, *values: bytes | None) -> None:
        self.release.take([Record(value) for value in values])

    def reasons(self) -> list[tuple[str, str | None]]:
        found = [row["reasons"] for row in self.release.rejected().iter_rows(named=True)]
        return [(f"{each[0]['rule']} {each[0]['column']}".strip(), each[0]["detail"]) for each in found]


def opened(spark: SparkSession, folder: Path, registry: StandIn) -> Trades:
    settings = Settings(state=folder / "a state", schema_registry_url=registry.address)
    return Trades(small_release(spark, settings, "trades", trades_folder(folder / "datasets")), registry)


@pytest.fixture
def trades(spark: SparkSession, tmp_path: Path) -> Iterator[Trades]:
    with registry_stand_in() as registry:
        assert registry.add("trades-value", schema_text(FIRST)) == 1
        assert registry.add("trades-value", schema_text(SECOND), 300) == 300
        yield opened(spark, tmp_path, registry)


def first(number: int, **fields: object) -> bytes:
    return encoded(FIRST, first_trade(number, **fields), 1)


def second(number: int, **fields: object) -> bytes:
    return encoded(SECOND, second_trade(number, **fields), 300)


def test_validation_of_unknown_schemas_is_not_built_ahead(trades: Trades) -> None:
    release = trades.release
    assert begin_full_validation(release.spark, release.dataset) == {}


def test_records_of_two_schemas_in_one_batch_become_rows_of_the_contract(trades: Trades) -> None:
    trades.take(first(1), second(2), first(3, price=None, note='say "hi", Ω'), second(4, side=None, settled_on=None))

    columns = ["trade_id", "traded_at", "quantity", "price", "side", "settled_on", "venue", "note", "live"]
    at = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
    millis, micros = at.replace(microsecond=123_000), at.replace(microsecond=123_456)
    assert trades.release.silver().select(columns).rows() == [
        ("t1", millis.replace(second=1), 2, Decimal("1.2500"), "SELL", None, None, None, None),
        ("t2", micros.replace(second=2), 3, Decimal("10.5000"), "BUY", "2026-12-02", "XETR", None, False),
        ("t3", millis.replace(second=3), 4, None, "SELL", None, None, 'say "hi", Ω', None),
        ("t4", micros.replace(second=4), 5, Decimal("10.5000"), None, None, "XETR", None, False),
    ]
    assert trades.reasons() == []
    gold = trades.release.read("gold.trade_days").sort("side", nulls_last=True).select("side", "trades", "worth").rows()
    assert gold == [("BUY", 1, Decimal("10.5000")), ("SELL", 2, Decimal("1.2500")), (None, 1, Decimal("10.5000"))]


def test_records_that_cannot_be_read_are_rejected_with_the_reason_and_others_are_not(trades: Trades) -> None:
    trades.registry.add("other", '{"type": "array", "items": "long"}', 7)
    trades.registry.add("other", '{"type": "object"}', 8, kind="JSON")
    broken = first(5)
    trades.take(
        first(1),
        None,
        b"",
        b'{"trade_id": "t9"}',
        b"\x00\x00\x00",
        UNKNOWN + b"abc",
        broken[:-3],
        broken + b"\x00",
        b"\x00\x00\x00\x00\x01\x02",
        # A text of 2 GB, of which nothing follows.
        b"\x00\x00\x00\x00\x01\xfe\xff\xff\xff\x0f",
        b"\x00\x00\x00\x00\x07\x02",
        b"\x00\x00\x00\x00\x08{}",
        first(6).replace(b"t6", b"\xff\xfe"),
        first(7, quantity=0),
        first(8, side="SHORT"),
        second(9, quantity=3_000_000_000),
        first(10, price=float("nan")),
        first(1),
    )
    assert trades.reasons() == [
        ("null_value", None),
        ("wire_format", ""),
        ("wire_format", "7B22747261"),
        ("wire_format", "000000"),
        ("unknown_schema", "999"),
        ("undecodable", "schema 1, at $.ignored"),
        ("undecodable", "schema 1"),
        ("undecodable", "schema 1, at $.trade_id"),
        ("undecodable", "schema 1, at $.trade_id"),
        ("unusable_schema", "schema 7 describes no record"),
        ("unusable_schema", "schema 8 is of type JSON"),
        ("bad_utf8", "schema 1, at $.trade_id"),
        ("range quantity", "0"),
        ("enum side", "SHORT"),
        ("out_of_range quantity", "3000000000"),
        ("type price", "NaN"),
        ("duplicate trade_id", "0/0/100"),
    ]
    assert trades.release.silver()["trade_id"].to_list() == ["t1"]


def test_records_of_a_schema_that_refers_to_others_are_read_by_both(trades: Trades, tmp_path: Path) -> None:
    names = {"ignored": "Side", "note": ["null", "Note"]}
    fields = [{**each, "type": names.get(str(each["name"]), each["type"])} for each in FIRST["fields"]]  # type: ignore[index]
    note = {"type": "record", "name": "market.events.Note", "fields": [{"name": "by", "type": "Side"}]}
    trades.registry.add("side", json.dumps({**SIDE, "namespace": "market.events"}), 20)
    trades.registry.add("note", json.dumps(note), 21)
    trades.registry.add("trades-value", json.dumps({**FIRST, "fields": fields}), 22)
    reference = {"name": "market.events.Side", "subject": "side", "version": 1}
    trades.registry.references[21] = [reference]
    trades.registry.references[22] = [{"name": "market.events.Note", "subject": "note", "version": 1}, reference]
    trades.take(encoded(FIRST, first_trade(1), 22), first(2))
    assert trades.release.silver()["trade_id"].to_list() == ["t1", "t2"]
    assert trades.release.silver()["side"].to_list() == ["SELL", "SELL"]
    assert differing(trades.release) == {}


def test_rebuild_and_deep_audit_give_the_same_rows_without_the_registry(trades: Trades, tmp_path: Path) -> None:
    trades.take(first(1), second(2), UNKNOWN)
    trades.take(second(3), second(2), first(4, quantity=0))
    requests = len(trades.registry.requests)
    trades.registry.answer = (503, b"")

    release, published = trades.release, read_publication(trades.release.settings, "trades")
    versions = {name: table.version for name, table in published.tables.items()}
    own = release.settings = release.settings.model_copy(update={"schema_registry_url": ""})
    audited = recompute_history(
        own, pinned_release(release.spark, own, release.dataset, versions), 1, tmp_path / "deep"
    )
    assert [found.counts for found in audited.differences] == [{}] * 3
    assert audited.records == 6
    assert len(trades.registry.requests) == requests

    patch, rebuilt, differing = SlicePatcher(release, tmp_path).rebuild(HISTORY)
    assert (rebuilt.core, set(differing.values())) == (6, {0}), patch
    assert len(trades.registry.requests) == requests


def test_schema_that_is_registered_after_the_next_run_was_validated_is_used(trades: Trades) -> None:
    made, writer = trades.release, trades.release.release.writer
    for value in (first(1), encoded(FIRST, first_trade(2), 12)):
        made.ingest([Record(value)])
    ahead = NextRun(writer, None, lambda _: (1, 1))
    made.refine(0, 0, following=ahead)
    assert ahead.validated is not None
    trades.registry.add("trades-value", schema_text(FIRST), 12)
    made.refine(1, 1, following=NextRun(writer, ahead.validated, lambda _: None))
    assert trades.reasons() == []
    assert made.silver()["trade_id"].to_list() == ["t1", "t2"]


@pytest.mark.extended
def test_records_of_an_unknown_schema_are_accepted_by_a_rebuild_once_it_is_known(
    trades: Trades, tmp_path: Path
) -> None:
    late = encoded(FIRST, first_trade(2), 12)
    trades.take(first(1), late)
    assert trades.reasons() == [("unknown_schema", "12")]
    trades.registry.add("trades-value", schema_text(FIRST), 12)
    patcher = SlicePatcher(trades.release, tmp_path)
    patch, _, _ = patcher.rebuild(HISTORY)
    patcher.apply(patch)
    assert trades.release.silver()["trade_id"].to_list() == ["t1", "t2"]
    assert trades.reasons() == []


def test_new_schema_is_requested_once_and_stored_before_its_records_are_validated(trades: Trades) -> None:
    trades.take(first(1), first(2))
    trades.take(first(3))
    assert trades.registry.requests == ["GET /schemas/ids/1"]
    trades.take(second(4))
    assert trades.registry.requests[1:] == ["GET /schemas/ids/300"]
    assert sorted(known_schemas(trades.release.settings, "trades")) == [1, 300]


def test_registry_that_gives_a_kept_id_another_schema_holds_the_run(trades: Trades) -> None:
    trades.take(first(1))
    trades.registry.schemas[1] = schema_text(SECOND)
    trades.take(first(2))
    trades.release.restart()
    with pytest.raises(Terminal, match="another schema 1") as refused:
        trades.take(first(3))
    assert refused.value.code == "schema-replaced"
    trades.registry.schemas[1] = json.dumps(FIRST, indent=4)
    trades.release.refine(2, 2)
    assert trades.release.silver()["trade_id"].to_list() == ["t1", "t2", "t3"]


def test_registry_that_is_down_holds_the_run_and_loses_nothing(trades: Trades) -> None:
    trades.take(first(1))
    batch = trades.release.ingest([Record(second(2)), Record(first(3))])
    trades.registry.answer = (503, b"starting")
    with pytest.raises(RegistryUnreachable, match="503 .*starting"):
        trades.release.refine(batch, batch)
    assert trades.release.silver()["trade_id"].to_list() == ["t1"]

    trades.registry.answer = None
    trades.release.refine(batch, batch)
    assert trades.release.silver()["trade_id"].to_list() == ["t1", "t2", "t3"]


def test_records_of_an_unset_registry_hold_the_run(spark: SparkSession, tmp_path: Path) -> None:
    with registry_stand_in() as registry:
        trades = opened(spark, tmp_path, StandIn(""))
        with pytest.raises(RegistryNotSet, match="HEADRACE_SCHEMA_REGISTRY_URL"):
            trades.take(first(1))
        assert registry.requests == []
