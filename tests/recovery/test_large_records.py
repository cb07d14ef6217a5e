"""Records of 300 KB in a driver with a small heap: bronze gets all of them."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable
from readings import readings
from recovery_site import Site, wait_until

from include.paths import bronze_path
from include.producers.kafka_producer import produce

RECORDS, PADDING, SENT_AT_A_TIME = 5_000, 150_000, 250
SCHEMA = {"key": pl.Binary, "value": pl.Binary, "fault": pl.String}


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_large_records_reach_bronze_with_a_small_heap(site: Site) -> None:
    for first in range(0, RECORDS, SENT_AT_A_TIME):
        sent = readings(first, SENT_AT_A_TIME)
        rows = [(item.key.encode(), padded(item.value), None) for item in sent]
        produce(site.bootstrap, site.dataset, pl.DataFrame(rows, schema=SCHEMA, orient="row"))
        site.sent += sent
    driver = site.start_driver()
    bronze = bronze_path(site.settings, site.dataset)
    wait_until(lambda: rows_of(bronze) == len(site.sent), "bronze has all records", driver)


def rows_of(table: Path) -> int:
    """Return the rows of a Delta table by its log, 0 before the first commit."""
    if not DeltaTable.is_deltatable(str(table)):
        return 0
    return sum(DeltaTable(table).get_add_actions(flatten=True)["num_records"].to_pylist())


def padded(value: str) -> bytes:
    """Return the record with a field that the contract does not know, which hardly compresses."""
    return f'{{"padding": "{os.urandom(PADDING).hex()}", {value[1:]}'.encode()
