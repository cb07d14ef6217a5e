"""Which batches have expired from a table: those before the transaction version of the table's expiry app id.

The owner's commit (`spark_jobs/stream/expire_batches.py`) names offsets and counts; this version is the first batch of
which a table has all rows.
"""

from __future__ import annotations

from include.ground.app_ids import expiry_app_id
from include.ground.delta_log import found_transaction
from include.read.publication import PublishedTable
from include.read.published_tables import RECORD_LAYERS, PinnedTables, open_table


def first_unexpired_batch(table: PublishedTable) -> int:
    """Return the first batch that has not expired from a published bronze, silver or rejected table; 0: none has."""
    layer = table.name.partition(".")[0]
    owner = layer if layer == "bronze" else table.release
    app_id = expiry_app_id(table.dataset, owner, layer)
    return max(0, found_transaction(open_table(table), table.path, app_id) or 0)


def first_complete_batch(reading: PinnedTables, dataset: str) -> int:
    """Return the first batch of which bronze, silver and rejected have all rows at their published versions."""
    return max(first_unexpired_batch(reading.table(f"{layer}.{dataset}")) for layer in RECORD_LAYERS)
