"""A dataset's publication in the object store and its owner: one object, replaced by conditional puts only.

`<dataset>/publication.json` has the content of the local file and, under `store`: the working copy that wrote it, the
version of each table up to which commits and files are in the store, and the checksums of the small files next to them.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from include.ground.delta_log import LOG, commit_content, commit_name
from include.ground.errors import Terminal
from include.ground.object_store import ObjectStore, StoreUnavailable
from include.ground.paths import publication_path, store_owner_path, warehouse
from include.ground.settings import Settings
from include.state.json_file import JsonFile

NOTHING: Mapping[str, Any] = {"tables": {}}
"""The publication of a dataset whose owner has not published yet."""


class StoreConflict(Terminal):
    """The store has content that this working copy did not write: nothing may be published from here."""

    def __init__(self, dataset: str, why: str, code: str, **facts: object) -> None:
        super().__init__(
            f"{dataset}: {why}; nothing was published, and what is in the store is unchanged",
            f"end the other owner, if there is one, then: headrace restore {dataset}   (takes what the store has; the"
            " copy here is moved away)",
            code=code,
            dataset=dataset,
            **facts,
        )

    @classmethod
    def elsewhere(cls, dataset: str, url: str, host: str) -> StoreConflict:
        """Another working copy, on `host`, has published to the store since, or has taken it over."""
        why = f"{url} belongs to the tables of another state folder, on host {host}"
        return cls(dataset, why, "published-elsewhere", host=host)

    @classmethod
    def other_commit(cls, dataset: str, table: str, version: int, url: str) -> StoreConflict:
        """A table here lacks a commit that the store has, or has another one in its place."""
        why = f"{url} has another version {version} of {table} than this state folder"
        return cls(dataset, why, "store-differs", table=table, version=version)


@dataclass(frozen=True)
class WorkingCopy:
    """The tables of a dataset in one state folder: a random name, and the host that created them.

    `domain`: hosts with the same one take over from each other (`include/state/adr-0001`); "" for none.
    """

    name: str
    host: str
    domain: str = ""


@dataclass(frozen=True)
class StoredPublication:
    """A dataset's content of the store. `tag`: the object's, for the next conditional put; "" before the first."""

    publication: Mapping[str, Any]
    owner: WorkingCopy
    versions: Mapping[str, int]
    """By path below the warehouse: the version up to which commits and files are in the store."""
    files: Mapping[str, str]
    """By key: the checksum of a small file that is in the store."""
    tag: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the owner has claimed the dataset and not published yet."""
        return not self.publication["tables"]

    def unpublished(self) -> set[str]:
        """Return the paths of tables that the publication does not name: of releases that were published before."""
        return self.versions.keys() - {table["path"] for table in self.publication["tables"].values()}

    def content(self) -> bytes:
        store = {"owner": asdict(self.owner), "versions": self.versions, "files": self.files}
        return (json.dumps({**self.publication, "store": store}, indent=1) + "\n").encode()


def _stored_key(dataset: str) -> str:
    return f"{dataset}/publication.json"


def read_stored(store: ObjectStore, dataset: str) -> StoredPublication | None:
    """Return what the store has of a dataset, None if it has no owner yet. Raises StoreUnavailable."""
    found = store.read(_stored_key(dataset))
    if found is None:
        return None
    try:
        publication = json.loads(found.content)
        own = publication.pop("store")
        return StoredPublication(publication, WorkingCopy(**own["owner"]), own["versions"], own["files"], found.tag)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{store.url}/{_stored_key(dataset)} is not a publication of Headrace ({error}); nothing was done"
        raise Terminal(what, "choose another prefix: HEADRACE_WAREHOUSE=s3://BUCKET/PREFIX") from error


def save_stored(store: ObjectStore, dataset: str, stored: StoredPublication) -> None:
    """Put the publication in place of the one with its tag. Raises StoreConflict when another was faster."""
    key, content = _stored_key(dataset), stored.content()
    if store.replace(key, content, stored.tag) if stored.tag else store.create(key, content):
        return
    # The second attempt of a repeated request finds the object of the first.
    found = store.read(key)
    if found is None or found.content != content:
        now = read_stored(store, dataset)
        raise StoreConflict.elsewhere(dataset, store.url, now.owner.host if now else "unknown")


def owner_file(settings: Settings, dataset: str) -> JsonFile[WorkingCopy]:
    """Return the file with the name of this working copy; no file before it has published to a store."""
    return working_copy_file(store_owner_path(settings, dataset), dataset)


def working_copy_file(path: Path, dataset: str) -> JsonFile[WorkingCopy]:
    """Return the file of a working copy's name at `path`."""
    return JsonFile(path, WorkingCopy, f"headrace restore {dataset}", "nothing was published")


def new_working_copy(settings: Settings) -> WorkingCopy:
    """Return a name that no other working copy has."""
    return WorkingCopy(uuid4().hex, socket.gethostname(), settings.lease_domain)


def refuse_conflict(settings: Settings, store: ObjectStore, dataset: str, stored: StoredPublication) -> None:
    """Raise StoreConflict unless this working copy has all that the store has."""
    own = owner_file(settings, dataset).read()
    if own is None or own.name != stored.owner.name:
        raise StoreConflict.elsewhere(dataset, store.url, stored.owner.host)
    if _local_publication(settings, dataset) == stored.publication:
        return
    refuse_other_commits(settings, store, dataset, stored)


def refuse_other_commits(settings: Settings, store: ObjectStore, dataset: str, stored: StoredPublication) -> None:
    """Raise StoreConflict unless the tables here have the commits that the store has, byte for byte.

    The newest commit of each table is compared: its writer had all earlier ones. Tables of a release that
    was published before may be gone.
    """
    root, unpublished = warehouse(settings), stored.unpublished()
    for path, version in stored.versions.items():
        if path in unpublished and not (root / path).is_dir():
            continue
        found = store.read(commit_key(path, version))
        if found is None or found.content != _own_commit(root / path, version):
            raise StoreConflict.other_commit(dataset, path, version, store.url)


def commit_key(table: str, version: int) -> str:
    """Return the key of a commit of the table at a path."""
    return f"{table}/{LOG}/{commit_name(version)}"


def _own_commit(table: Path, version: int) -> bytes | None:
    try:
        return commit_content(table, version)
    except FileNotFoundError:
        return None


def _local_publication(settings: Settings, dataset: str) -> object:
    try:
        return json.loads(publication_path(settings, dataset).read_bytes())
    except (FileNotFoundError, ValueError):
        return None


PROBES = "_headrace_probe"
ROUNDS, CLIENTS = 8, 12


class StoreUnsafe(Terminal):
    """Several conditional puts succeed where only one may: the store would lose commits."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"object store {url} {why}; commits would overwrite each other, nothing was written to it",
            "use a store with conditional puts (Amazon S3, Ceph; docs/how-to/tables-on-s3.md), or unset"
            " HEADRACE_WAREHOUSE",
        )
        self.url = url


def require_conditional_puts(store: ObjectStore) -> None:
    """Raise StoreUnsafe unless conditional puts exclude each other, one after the other and in a race.

    Some stores ignore the condition, and some check it without a lock: an acknowledged commit is then overwritten.
    """
    folder = f"{PROBES}/{uuid4().hex}"
    try:
        _try_in_turn(store, f"{folder}/turn")
        for number in range(ROUNDS):
            _race_to_create(store, f"{folder}/create-{number}")
            _race_to_replace(store, f"{folder}/replace-{number}")
    except StoreUnsafe:
        # Such a store may not delete either; that it is unsafe is what counts.
        with suppress(StoreUnavailable):
            _clean_up(store, folder)
        raise
    _clean_up(store, folder)


def _clean_up(store: ObjectStore, folder: str) -> None:
    store.delete([each.key for each in store.list(folder)])


def _try_in_turn(store: ObjectStore, key: str) -> None:
    if not store.create(key, b"first"):
        raise StoreUnsafe(store.url, "refuses to create an object that is not there")
    if store.create(key, b"second"):
        raise StoreUnsafe(store.url, "ignores If-None-Match: a put replaced an object that was to be created")
    tag = _tag(store, key)
    if not store.replace(key, b"third", tag):
        raise StoreUnsafe(store.url, "refuses to replace an object whose tag is named")
    if store.replace(key, b"fourth", tag):
        raise StoreUnsafe(store.url, "ignores If-Match: a put replaced an object that had changed")


def _race_to_create(store: ObjectStore, key: str) -> None:
    winners = _winners(lambda content: store.create(key, content))
    if winners != 1:
        raise StoreUnsafe(store.url, f"let {winners} of {CLIENTS} clients create the same object in a race")


def _race_to_replace(store: ObjectStore, key: str) -> None:
    store.create(key, b"before")
    winners = _winners(partial(_replaced, store, key, _tag(store, key)))
    if winners != 1:
        raise StoreUnsafe(store.url, f"let {winners} of {CLIENTS} clients replace the same object in a race")


def _replaced(store: ObjectStore, key: str, tag: str, content: bytes) -> bool:
    return store.replace(key, content, tag)


def _winners(put: Callable[[bytes], bool]) -> int:
    """Return how many of several clients succeed when they put at the same moment."""
    together = threading.Barrier(CLIENTS)

    def race(number: int) -> bool:
        together.wait()
        return put(f"client {number}".encode())

    with ThreadPoolExecutor(CLIENTS) as clients:
        return sum(clients.map(race, range(CLIENTS)))


def _tag(store: ObjectStore, key: str) -> str:
    found = store.read(key)
    if found is None:
        raise StoreUnsafe(store.url, "does not return an object that was put")
    return found.tag
