"""The audit keeps the payloads of rejected duplicates while it compares Kafka, so that bronze is not read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_warehouse import bronze_metadata, bronze_row, rejected_row, silver_row
from test_audit_balance import VALUES, SmallKafka, sales_settings, write_sales

from include.audit import balance, kafka_comparison
from include.audit.balance import DatasetAudit
from include.audit.kafka_comparison import PAYLOADS, KafkaCounts, payload_view
from include.audit.run import audit_dataset

A, C = VALUES[0, 0], b'{"event_id":"c"}'
LATER = {(0, 4): A, (0, 5): C, (0, 6): b"bad", (1, 1): A, (1, 2): A}


class WatchedView:
    """The view in which the audit looked up payloads, its rows, and the number of frames that were kept."""

    name = ""
    frames = 0
    rows: list[Any]

    def __call__(self, database: Any, counted: KafkaCounts) -> str:
        self.name, self.frames = payload_view(database, counted), len(counted.payloads.frames)
        self.rows = database.sql(f'select partition, "offset", value from {self.name} order by all').fetchall()
        return self.name


@pytest.fixture
def view(monkeypatch: pytest.MonkeyPatch) -> WatchedView:
    watched = WatchedView()
    monkeypatch.setattr(balance, "payload_view", watched)
    return watched


def audited(folder: Path) -> DatasetAudit:
    """Audit three batches. Kafka is read two offsets at a time; four chunks of six have a duplicate."""
    settings = sales_settings(folder)
    made = write_sales(settings)
    rows = [bronze_row(offset, value, partition=p, batch=2) for (p, offset), value in LATER.items()]
    made.write("bronze", rows, bronze_metadata(2, {0: (4, 7), 1: (1, 3)}))
    made.write("silver", [silver_row(5, "c", batch=2, shop="south", kind="lost")])
    duplicates = [rejected_row(o, "duplicate", partition=p, batch=2) for (p, o), v in LATER.items() if v == A]
    made.write("rejected", [*duplicates, rejected_row(6, "invalid", batch=2)])
    made.move(batch=2, offsets={0: 7, 1: 3})
    return audit_dataset(settings, "sales", SmallKafka(VALUES | LATER, {0: 7, 1: 3}).open_topic)


def of_records(audit: DatasetAudit) -> list[str]:
    return [str(finding) for finding in audit.findings if not finding.table.startswith("gold.")]


def test_payloads_of_all_duplicates_are_kept_and_of_no_other_record(tmp_path: Path, view: WatchedView) -> None:
    assert of_records(audited(tmp_path)) == []
    assert (view.name, view.frames) == (PAYLOADS, 4)
    assert view.rows == [(0, 3, A), (0, 4, A), (1, 1, A), (1, 2, A)]


def test_payloads_are_read_from_bronze_when_more_would_be_kept_than_the_bound(
    tmp_path: Path, view: WatchedView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_comparison, "MOST_PAYLOAD_BYTES", 0)
    assert of_records(audited(tmp_path)) == []
    assert (view.name, view.frames) == ("bronze", 0), "what was read before is dropped"
