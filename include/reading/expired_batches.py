"""Which batches have expired from a table: those before the transaction version of the table's expiry app id.

The owner's commit (`spark_jobs/engine/expire_batches.py`) names offsets and counts; this version alone says from which
batch on a table's rows are complete.
"""

from __future__ import annotations

from include.app_ids import expiry_app_id
from include.reading.publication import PublishedTable
from include.reading.published_tables import PinnedTables, open_table


def kept_from(table: PublishedTable) -> int:
    """Return the first batch whose rows a published bronze, silver or rejected table has not expired; 0: all."""
    layer = table.name.partition(".")[0]
    owner = layer if layer == "bronze" else table.release
    return max(0, open_table(table).transaction_version(expiry_app_id(table.dataset, owner, layer)) or 0)


def complete_from(reading: PinnedTables, dataset: str) -> int:
    """Return the first batch of which bronze, silver and rejected have all rows at their published versions."""
    return max(kept_from(reading.table(f"{layer}.{dataset}")) for layer in ("bronze", "silver", "rejected"))
