"""The expired batches of a release's tables, for their owner or a pinned reader."""

from __future__ import annotations

from include.ground.app_ids import expiry_app_id
from spark_jobs.layers.silver_tables import SilverTables


def expiry_ids(writer: SilverTables) -> dict[str, str]:
    """Return the app id of expiry commits for bronze, silver and rejected."""
    name, release = writer.dataset.name, writer.dataset.release
    owners = {"bronze": "bronze", "silver": release, "rejected": release}
    return {layer: expiry_app_id(name, owner, layer) for layer, owner in owners.items()}


def first_unexpired_batch(writer: SilverTables, layer: str) -> int:
    """Return the first batch that has not expired from bronze, silver or rejected; 0: none has."""
    table = {"bronze": writer.bronze, "silver": writer.silver, "rejected": writer.rejected}[layer]
    return max(0, table.committed(expiry_ids(writer)[layer]))


def first_complete_batch(writer: SilverTables) -> int:
    """Return the first batch of which bronze, silver and rejected have all rows."""
    return max(first_unexpired_batch(writer, layer) for layer in expiry_ids(writer))
