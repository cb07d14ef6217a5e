"""Test of the guarantee that commits need from a store: of several conditional puts, exactly one succeeds.

Some stores ignore the condition, and some check it without a lock: a commit that was acknowledged is then overwritten.
Writes: objects below `_headrace_probe/`, which it deletes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from uuid import uuid4

from include.ground.errors import Terminal
from include.ground.object_store import ObjectStore, StoreUnavailable

PROBES = "_headrace_probe"
ROUNDS, CLIENTS = 8, 12


class StoreUnsafe(Terminal):
    """Several conditional puts succeed where only one may: the store would lose commits."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"object store {url} {why}; commits would overwrite each other, nothing was written to it",
            "use a store with conditional puts (Amazon S3, Ceph; docs/tasks/tables-on-s3.md), or unset"
            " HEADRACE_WAREHOUSE",
        )
        self.url = url


def require_conditional_puts(store: ObjectStore) -> None:
    """Raise StoreUnsafe unless conditional puts exclude each other, one after the other and in a race."""
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
