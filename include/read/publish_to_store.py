"""Publish to the object store: files, then commits, then the publication (adr-0002); later remove what is obsolete.

All that the store's publication names is complete in the store. Commits are created, never replaced. The
publication is replaced only if this working copy was the last to replace it.
After a crash: call it again; it recognises what the store already has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from include.ground.app_ids import require_ownership
from include.ground.delta_log import (
    LOG,
    checkpoint_file,
    checkpoint_name,
    commit_content,
    file_changes,
    last_checkpoint,
    latest_version,
    obsolete_files,
)
from include.ground.durable_files import file_checksum
from include.ground.object_store import ObjectStore, find_store, keys_below
from include.ground.paths import active_releases_path, decision_log_path, snapshots_path, warehouse, writer_schemas_path
from include.ground.settings import Settings
from include.read.stored_publication import (
    NOTHING,
    StoreConflict,
    StoredPublication,
    commit_key,
    new_working_copy,
    owner_file,
    read_stored,
    refuse_conflict,
    refuse_other_commits,
    require_conditional_puts,
    save_stored,
)

AT_ONCE = 16
"""Concurrent requests."""
LISTED_FROM = 100
"""With at least so many files, those that an interrupted attempt has sent are searched first."""


@dataclass(frozen=True)
class TablePush:
    """A table's commits after version `after` up to `upto`, with their files."""

    folder: Path
    path: str
    after: int
    upto: int

    def files(self) -> list[tuple[str, Path]]:
        """Return the files of version `upto` that version `after` does not have, by key."""
        added = file_changes(self.folder, self.after, self.upto).added
        return [(f"{self.path}/{each}", self.folder / each) for each in added]

    def checkpoints(self) -> Iterator[tuple[str, Path]]:
        """Yield the log's checkpoints among these commits by key, and the hint that names the last one."""
        written = [checkpoint_file(self.folder, each) for each in range(self.after + 1, self.upto + 1)]
        found = [path for path in written if path.exists()]
        if found and (last_checkpoint(self.folder) or 0) <= self.upto:
            found.append(self.folder / LOG / "_last_checkpoint")
        yield from ((f"{self.path}/{LOG}/{path.name}", path) for path in found)


def publish_to_store(settings: Settings, dataset: str, publication: Mapping[str, Any]) -> None:
    """Send tables and publication to the store of the settings, which name one.

    `publication`: the content of its file. Raises StoreUnavailable, StoreConflict, StoreUnsafe; readers of the store
    then still see the last publication.
    """
    store = find_store(settings)
    assert store is not None
    before = _begin(settings, store, dataset)
    versions = _versions(settings, dataset, publication)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        if not settings.stores_tables:
            _push_tables(settings, store, dataset, before.versions, versions, pool)
        versions = _remove_gone(settings, store, before) | versions
        files = _push_files(settings, store, dataset, versions, before.files, pool)
    require_ownership()
    save_stored(store, dataset, replace(before, publication=publication, versions=versions, files=files))


def _begin(settings: Settings, store: ObjectStore, dataset: str) -> StoredPublication:
    """Return this working copy's publication in the store. Before the first one, claim the dataset by an empty one.

    Objects in the store then always have an owner, from whom another state folder can take the dataset over.
    """
    before = read_stored(store, dataset)
    if before is None:
        require_conditional_puts(store)
        own = owner_file(settings, dataset).read() or new_working_copy(settings)
        owner_file(settings, dataset).write(own)
        save_stored(store, dataset, StoredPublication(NOTHING, own, {}, {}))
        return _begin(settings, store, dataset)
    refuse_conflict(settings, store, dataset, before)
    return before


def _remove_gone(settings: Settings, store: ObjectStore, before: StoredPublication) -> dict[str, int]:
    """Delete unpublished tables that this state folder no longer has; return the versions of the others."""
    kept = dict(before.versions)
    for path in before.unpublished():
        if not (warehouse(settings) / path).is_dir():
            store.delete([each.key for each in store.list(path)])
            del kept[path]
    return kept


def refuse_start(settings: Settings, dataset: str) -> None:
    """Raise StoreConflict unless the tables here have every commit of the store; do nothing without a store.

    Called before a driver touches a table: a rollback after a power cut, for example, must not repeat batches that the
    store has. Raises StoreUnsafe before the first publication.
    """
    store = find_store(settings)
    if store is None:
        return
    refuse_other_commits(settings, store, dataset, _begin(settings, store, dataset))


def _versions(settings: Settings, dataset: str, publication: Mapping[str, Any]) -> dict[str, int]:
    """Return the published versions by path, and those of the reference tables that batches are joined with."""
    root = warehouse(settings)
    published = {table["path"]: int(table["version"]) for table in publication["tables"].values()}
    logs = sorted((root / dataset / "reference").glob(f"*/{LOG}"))
    return {log.parent.relative_to(root).as_posix(): latest_version(log.parent) for log in logs} | published


def _push_tables(
    settings: Settings,
    store: ObjectStore,
    dataset: str,
    known: Mapping[str, int],
    versions: Mapping[str, int],
    pool: ThreadPoolExecutor,
) -> None:
    """Send all files, then all commits: a commit in the store has its files. Raises StoreConflict."""
    root, pushes = warehouse(settings), list[TablePush]()
    for path, version in versions.items():
        if version < known.get(path, -1):
            raise StoreConflict.other_commit(dataset, path, known[path], store.url)
        pushes.append(TablePush(root / path, path, known.get(path, -1), version))
    _send_all(store, [file for push in pushes for file in _missing(store, push)], pool)
    list(pool.map(lambda push: _put_commits(store, dataset, push), pushes))
    _send_all(store, [file for push in pushes for file in push.checkpoints()], pool)


def _missing(store: ObjectStore, push: TablePush) -> list[tuple[str, Path]]:
    files = push.files()
    if len(files) < LISTED_FROM:
        return files
    there = keys_below(store.list(push.path))
    return [(key, path) for key, path in files if there.get(key) != path.stat().st_size]


def _send_all(store: ObjectStore, files: list[tuple[str, Path]], pool: ThreadPoolExecutor) -> None:
    list(pool.map(lambda file: store.write(*file), files))


def _put_commits(store: ObjectStore, dataset: str, push: TablePush) -> None:
    """Create the commits in order; skip one that the store has with the same content. Raises StoreConflict."""
    for version in range(push.after + 1, push.upto + 1):
        key, content = commit_key(push.path, version), commit_content(push.folder, version)
        if not store.create(key, content):
            found = store.read(key)
            if found is None or found.content != content:
                why = f"another writer has committed version {version} of {push.path} to {store.url}"
                raise StoreConflict(dataset, why, "foreign-commit", table=push.path, version=version)


def _push_files(
    settings: Settings,
    store: ObjectStore,
    dataset: str,
    versions: Mapping[str, int],
    known: Mapping[str, str],
    pool: ThreadPoolExecutor,
) -> dict[str, str]:
    """Send the small files that a restored dataset needs and that changed; return the checksum of each by key."""
    files = dict(small_files(settings, dataset, {path.split("/")[1] for path in versions}))
    sums = {key: _checksum_of(path) for key, path in files.items()}
    _send_all(store, [(key, files[key]) for key, checksum in sums.items() if known.get(key) != checksum], pool)
    return sums


def _checksum_of(path: Path) -> str:
    found = path.stat()
    return _checksum(path, found.st_ino, found.st_size, found.st_mtime_ns)


# Small files rarely change, and each publication needs all of them.
@lru_cache(maxsize=4096)
def _checksum(path: Path, _inode: int, _size: int, _changed: int) -> str:
    return file_checksum(path)


def small_files(settings: Settings, dataset: str, names: set[str]) -> Iterator[tuple[str, Path]]:
    """Yield by key the files next to the tables: decisions, writers' schemas, active releases, snapshots of releases.

    `names`: folders of the dataset, among them those of releases.
    """
    for path in (decision_log_path, writer_schemas_path, active_releases_path):
        if path(settings, dataset).exists():
            yield f"{dataset}/{path(settings, dataset).name}", path(settings, dataset)
    for release in sorted(names):
        folder = snapshots_path(settings, dataset) / release
        for file in sorted(folder.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield f"{dataset}/{release}/{SNAPSHOT}/{file.relative_to(folder).as_posix()}", file


SNAPSHOT = "snapshot"


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
