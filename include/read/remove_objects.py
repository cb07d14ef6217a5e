"""Remove objects that no reader of the store needs any more (spark_jobs/stream/adr-0004 has the rule).

Reads: the store's log of a table. Writes: deletes objects of the store.
Guarantee: the newest version of the store's log stays readable, and so do the versions that this state folder keeps and
those replaced within the retention. Commits stay.
After a crash: the next call finds what is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import orjson

from include.ground.commit_guard import require_ownership
from include.ground.delta_log import LOG, checkpoint_name
from include.ground.object_store import ObjectStore, find_store
from include.ground.paths import warehouse
from include.ground.settings import Settings
from include.ground.table_files import obsolete_files
from include.read.stored_publication import owner_file, read_stored

CHECKPOINT = re.compile(r".*/(\d{20})\.checkpoint\.parquet")
KEPT_CHECKPOINTS = 10
"""A reader may be opening one of them. A version before the oldest checkpoint is opened from its commits."""


def remove_stored_files(settings: Settings, table: Path, protected: Iterable[int], retention: timedelta) -> int:
    """Remove the obsolete objects of a table from the store; return how many. Without a store, 0.

    `protected`: the versions that stay. Lists the table's log, and waits for the store. Raises StoreUnavailable.
    """
    store = find_store(settings)
    if store is None:
        return 0
    path = table.relative_to(warehouse(settings))
    stored, key = read_stored(store, path.parts[0]), path.as_posix()
    own = owner_file(settings, path.parts[0]).read()
    if stored is None or own is None or own.name != stored.owner.name:
        # Another state folder owns what is stored now: what it protects is not known here.
        return 0
    if key not in stored.versions:
        return 0
    kept = [version for version in protected if version <= stored.versions[key]]
    files = obsolete_files(f"{store.url}/{key}", kept, retention, options=store.delta_options)
    obsolete = [f"{key}/{file}" for file in files] + _old_checkpoints(store, key)
    require_ownership()
    store.delete(obsolete)
    return len(obsolete)


def _old_checkpoints(store: ObjectStore, table: str) -> list[str]:
    """Return the log's checkpoints without the newest ones and without the one that the hint for readers names."""
    found = sorted(each.key for each in store.list(f"{table}/{LOG}") if CHECKPOINT.fullmatch(each.key))
    hint = store.read(f"{table}/{LOG}/_last_checkpoint")
    named = checkpoint_name(int(orjson.loads(hint.content)["version"])) if hint else ""
    return [key for key in found[:-KEPT_CHECKPOINTS] if not key.endswith(f"/{named}")]
