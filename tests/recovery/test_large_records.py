"""Records of 300 KB in a driver with a small heap: batches and runs get few of them, and all are published."""

from __future__ import annotations

import os

import polars as pl
import pytest
from readings import readings
from recovery_site import Site

from include.ground.delta_log import commits
from include.ground.paths import bronze_path
from include.producers.sending import produce

RECORDS, PADDING, SENT_AT_A_TIME = 3_000, 150_000, 250
SCHEMA = {"key": pl.Binary, "value": pl.Binary, "fault": pl.String}


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_large_records_are_published_with_a_small_heap(site: Site) -> None:
    for first in range(0, RECORDS, SENT_AT_A_TIME):
        sent = readings(first, SENT_AT_A_TIME)
        rows = [(item.key.encode(), padded(item.value), None) for item in sent]
        produce(site.bootstrap, site.dataset, pl.DataFrame(rows, schema=SCHEMA, orient="row"))
        site.sent += sent
    driver = site.start_driver()
    site.wait_published(driver)
    found = [commit for commit in commits(bronze_path(site.settings, site.dataset)) if commit.app_id]
    assert len(found) > 2, "256 MB are fewer than 1,000 records"
    site.assert_nothing_lost()


def padded(value: str) -> bytes:
    """Return the record with a field that the contract does not know, which hardly compresses."""
    return f'{{"padding": "{os.urandom(PADDING).hex()}", {value[1:]}'.encode()
