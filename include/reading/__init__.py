"""The publications, and the published tables pinned to them.

For notebooks: `from include.reading import read` and `read("gold.carrier_hours")` is a lazy polars frame.
"""

from include.reading.published_tables import PinnedTables, TableUnknown, pinned, read, read_arrow
from include.reading.subscription import PublishedChange, subscribe

__all__ = ["PinnedTables", "PublishedChange", "TableUnknown", "pinned", "read", "read_arrow", "subscribe"]
