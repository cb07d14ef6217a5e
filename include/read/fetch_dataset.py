"""Replace a dataset's tables in the state folder by those of the object store, and become their owner (adr-0002).

The tables are those of the store's publication, and each file has the checksum in its name. The previous
owner is refused from then on. Commits in the store that no publication names are removed: they were interrupted and
will be repeated.
After a crash, call it again; complete files are not fetched twice. The checkpoint of Kafka belongs to the replaced
tables and is moved away with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from include.ground.app_ids import require_ownership
from include.ground.delta_log import LOG, current_files
from include.ground.durable_files import file_checksum, named_checksum, write_atomically
from include.ground.errors import Refused, Transient
from include.ground.object_store import ObjectStore, find_store, keys_below
from include.ground.paths import (
    active_releases_path,
    checkpoint_path,
    local_warehouse,
    publication_path,
    removed_commits_path,
    restoring_path,
    snapshots_path,
    store_owner_path,
)
from include.ground.settings import Settings
from include.read.publish_to_store import AT_ONCE, SNAPSHOT, refuse_start
from include.read.stored_publication import (
    StoredPublication,
    new_working_copy,
    owner_file,
    read_stored,
    save_stored,
    working_copy_file,
)

LOGGED = re.compile(rf"(?P<table>.+)/{LOG}/(?P<version>\d{{20}})\.(json|checkpoint\.parquet)")


@dataclass(frozen=True)
class RestoredDataset:
    """The restored publication: batch and release, versions by table, number and bytes of fetched files.

    `removed`: commits in the store that no publication names. `moved_to`: the folder of the replaced tables.
    `batch` is -1 if nothing was published: only the ownership was taken over, and the tables here are unchanged.
    """

    release: str
    batch: int
    versions: Mapping[str, int]
    files: int
    bytes: int
    removed: Sequence[str]
    moved_to: Path | None


def store_of(settings: Settings, dataset: str) -> ObjectStore:
    """Return the object store that has the dataset's tables. Raises Refused (not-stored) when none is set."""
    store = find_store(settings)
    if store is None:
        raise _not_stored(dataset, "HEADRACE_WAREHOUSE names no object store")
    return store


def _not_stored(dataset: str, where: str) -> Refused:
    what, remedy = f"{dataset}: {where}; nothing was changed", "headrace settings   (HEADRACE_WAREHOUSE…)"
    return Refused(what, remedy, code="not-stored", dataset=dataset)


def fetch_dataset(settings: Settings, dataset: str, now: datetime) -> RestoredDataset:
    """Take a dataset over from the store.

    Raises Refused (not-stored), Transient (fetched-file-differs), StoreUnavailable, StoreConflict.

    The caller holds the dataset's lease.
    """
    store = store_of(settings, dataset)
    stored = read_stored(store, dataset)
    if stored is None:
        raise _not_stored(dataset, f"{store.url} has no publication of it")
    own = replace(stored, owner=new_working_copy(settings))
    require_ownership()
    save_stored(store, dataset, own)
    replaced = removed_commits_path(settings, dataset) / f"{now:%Y%m%dT%H%M%SZ}"
    objects = _objects(settings, store, dataset)
    removed = _remove_unpublished(store, objects, stored.versions)
    if stored.is_empty:
        owner_file(settings, dataset).write(own.owner)
        # In a store, batches that nobody has published may be of another host; the checkpoint here does not know them.
        old = {"checkpoint": checkpoint_path(settings, dataset)} if settings.stores_tables else {}
        return RestoredDataset("", -1, {}, 0, 0, removed, _move_away(old, replaced))
    staging = restoring_path(settings, dataset)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        logs = _logs(objects, stored.versions)
        _fetch_all(store, {key: staging / Path(key).relative_to(dataset) for key in logs}, objects, pool)
        data = {} if settings.stores_tables else _data_files(staging, dataset, stored.versions)
        fetched = _fetch_all(store, data, objects, pool)
        small = {key: _small_file(settings, staging, dataset, key) for key in stored.files}
        _fetch_all(store, small, {}, pool)
    # The previous owner may have been sending commits when it lost the dataset.
    removed += _remove_unpublished(store, _objects(settings, store, dataset), stored.versions)
    _write_records(settings, staging, dataset, own)
    moved = _replace_tables(settings, dataset, staging, replaced)
    publication = stored.publication
    sizes = sum(objects[key] for key in data)
    return RestoredDataset(
        publication["release"], publication["batch"], stored.versions, fetched, sizes, removed, moved
    )


def own_in_store(settings: Settings, dataset: str, now: datetime) -> RestoredDataset | None:
    """Make sure that this working copy owns the dataset in the store, before a table is opened; without one do nothing.

    Takes it over from a host with the same leases, and returns what was fetched then. The caller holds the dataset's
    lease. Raises as `fetch_dataset` and `refuse_start`, LeaseLost.
    """
    taken = _take_over_in_domain(settings, dataset, now)
    refuse_start(settings, dataset)
    return taken


def _take_over_in_domain(settings: Settings, dataset: str, now: datetime) -> RestoredDataset | None:
    store = find_store(settings)
    if store is None or not settings.lease_domain:
        return None
    stored, own = read_stored(store, dataset), owner_file(settings, dataset).read()
    if stored is not None and own is not None and own.name == stored.owner.name:
        _name_domain(settings, store, dataset, stored)
    elif stored is not None and stored.owner.domain == settings.lease_domain:
        return fetch_dataset(settings, dataset, now)
    return None


def _name_domain(settings: Settings, store: ObjectStore, dataset: str, stored: StoredPublication) -> None:
    """Let other hosts of the domain take over what this working copy owned before it had one."""
    owner = replace(stored.owner, domain=settings.lease_domain)
    if owner != stored.owner:
        require_ownership()
        save_stored(store, dataset, replace(stored, owner=owner))


def _objects(settings: Settings, store: ObjectStore, dataset: str) -> dict[str, int]:
    """Return the bytes of the dataset's objects by key; none where tables lie in the store, and stay as they are."""
    return {} if settings.stores_tables else keys_below(store.list(dataset))


def _remove_unpublished(store: ObjectStore, objects: Mapping[str, int], versions: Mapping[str, int]) -> list[str]:
    """Remove the logs' objects after the published versions, and the hints that may name them; return the keys."""
    later = [key for key in objects if LOGGED.fullmatch(key) and not _is_published(key, versions)]
    hints = {f"{key.rpartition('/')[0]}/_last_checkpoint" for key in later}
    removed = later + sorted(hints & objects.keys())
    store.delete(removed)
    return removed


def _logs(objects: Mapping[str, int], versions: Mapping[str, int]) -> list[str]:
    return [key for key in objects if _is_published(key, versions)]


def _is_published(key: str, versions: Mapping[str, int]) -> bool:
    found = LOGGED.fullmatch(key)
    return found is not None and int(found["version"]) <= versions.get(found["table"], -1)


def _data_files(staging: Path, dataset: str, versions: Mapping[str, int]) -> dict[str, Path]:
    tables = {table: staging / Path(table).relative_to(dataset) for table in versions}
    return {f"{table}/{file}": path / file for table, path in tables.items() for file in current_files(path)}


def _small_file(settings: Settings, staging: Path, dataset: str, key: str) -> Path:
    """Return the local path of a small file: in the folder of snapshots, or next to the tables."""
    parts = Path(key).relative_to(dataset).parts
    if len(parts) > 2 and parts[1] == SNAPSHOT:
        return snapshots_path(settings, dataset).joinpath(parts[0], *parts[2:])
    return staging.joinpath(*parts)


def _fetch_all(
    store: ObjectStore, files: Mapping[str, Path], sizes: Mapping[str, int], pool: ThreadPoolExecutor
) -> int:
    missing = {k: path for k, path in files.items() if not path.exists() or path.stat().st_size != sizes.get(k)}
    list(pool.map(partial(_fetch, store), missing.items()))
    return len(missing)


def _fetch(store: ObjectStore, file: tuple[str, Path]) -> None:
    key, path = file
    if not store.download(key, path):
        raise _differs(key, "is missing")
    checksum = named_checksum(path.name)
    if checksum is not None and file_checksum(path) != checksum:
        path.unlink()
        raise _differs(key, f"has not the checksum {checksum} of its name")


def _differs(key: str, why: str) -> Transient:
    """Return the error for a file that is incomplete, or was changed in the store."""
    what = f"{key} in the object store {why}; the tables here are unchanged"
    return Transient(what, "headrace restore, again", code="fetched-file-differs", key=key)


def _write_records(settings: Settings, staging: Path, dataset: str, stored: StoredPublication) -> None:
    """Write owner and publication; drop active releases whose tables the store does not have."""
    active = staging / active_releases_path(settings, dataset).name
    if active.exists():
        known = {path.split("/")[1] for path in stored.versions} | {stored.publication["release"]}
        names = [name for name in json.loads(active.read_bytes()) if name in known]
        write_atomically(active, json.dumps(names))
    working_copy_file(staging / store_owner_path(settings, dataset).name, dataset).write(stored.owner)
    text = json.dumps(stored.publication, indent=1) + "\n"
    write_atomically(staging / publication_path(settings, dataset).name, text)


def _replace_tables(settings: Settings, dataset: str, staging: Path, moved: Path) -> Path | None:
    """Move the old tables and checkpoint away and the fetched tables into place; return the folder of the old ones."""
    tables = local_warehouse(settings) / dataset
    old = {"tables": tables, "checkpoint": checkpoint_path(settings, dataset)}
    moved_to = _move_away(old, moved)
    tables.parent.mkdir(parents=True, exist_ok=True)
    staging.rename(tables)
    return moved_to


def _move_away(old: Mapping[str, Path], moved: Path) -> Path | None:
    """Move what there is of the folders; return the folder that has them now, None if there was nothing."""
    found = {name: path for name, path in old.items() if path.exists()}
    for name, path in found.items():
        moved.mkdir(parents=True, exist_ok=True)
        path.rename(moved / name)
    return moved if found else None
