"""An owner that was stopped in the middle of a commit and comes back: its commit and its publication are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from test_reading_publication import flights
from test_table_commits import file, spec

from include.clients.delta_log import LOG
from include.commit_guard import add_check, remove_check
from include.leases.lease_errors import LeaseLost
from include.reading.publication import fence_publication, publish, read_publication
from include.settings import Settings
from spark_jobs.storage.claim_tables import claim_tables
from spark_jobs.storage.delta_table import OwnershipLost, Table


@contextmanager
def at_the_check(act: Callable[[], None]) -> Iterator[None]:
    """Do something in the moment between the last check of the lease and the commit."""
    add_check(act)
    try:
        yield
    finally:
        remove_check(act)


def lose() -> None:
    raise LeaseLost("small", "leases/small")


def test_owner_without_its_lease_commits_nothing(tmp_path: Path) -> None:
    table = Table(spec(tmp_path))
    table.commit("app", 0, {}, [file("one")])
    with at_the_check(lose):
        with pytest.raises(LeaseLost):
            table.commit("app", 1, {}, [file("two")])
        with pytest.raises(LeaseLost):
            table.compact([file("both")], [file("one")])
    assert [each.path for each in Table(spec(tmp_path)).files()] == [file("one").path]
    assert table.commit("app", 1, {}, [file("two")]) == 2


def test_commit_that_was_checked_before_the_new_owner_came_is_refused(tmp_path: Path) -> None:
    earlier = Table(spec(tmp_path))
    earlier.commit("app", 0, {}, [file("one")])
    with at_the_check(lambda: claim_tables([earlier.spec.path], 2)), pytest.raises(OwnershipLost):
        earlier.commit("app", 1, {}, [file("two")])
    owner = Table(spec(tmp_path))
    assert ([each.path for each in owner.files()], owner.committed("app")) == ([file("one").path], 0)
    assert owner.commit("app", 1, {}, [file("other")]) == 3
    with pytest.raises(OwnershipLost):
        earlier.compact([replace(file("same"), rows=3)], [file("one")])


def test_commit_that_came_before_the_claim_is_read_by_the_new_owner(tmp_path: Path) -> None:
    earlier = Table(spec(tmp_path))
    earlier.commit("app", 0, {}, [file("one")])
    claim_tables([earlier.spec.path, tmp_path / "no table yet"], 2)
    assert (owner := Table(spec(tmp_path))).committed("app") == 0
    assert owner.version == 2


def test_table_whose_creation_was_interrupted_is_created_by_the_new_owner(tmp_path: Path) -> None:
    path = spec(tmp_path).path
    (path / LOG).mkdir(parents=True)
    (path / LOG / "_commit_0f3a.json.tmp").write_text("{")
    claim_tables([path], 2)
    owner = Table(spec(tmp_path))
    assert (owner.version, owner.commit("app", 0, {}, [file("one")])) == (0, 1)


def test_publication_that_was_checked_before_the_new_owner_came_is_refused(settings: Settings) -> None:
    publish(settings, flights(12))

    def take_over() -> None:
        remove_check(take_over)
        fence_publication(settings, "flights")
        publish(settings, flights(14))

    with at_the_check(take_over), pytest.raises(FileNotFoundError):
        publish(settings, flights(13))
    assert read_publication(settings, "flights") == flights(14)


def test_owner_without_its_lease_publishes_nothing(settings: Settings) -> None:
    publish(settings, flights(12))
    with at_the_check(lose), pytest.raises(LeaseLost):
        publish(settings, flights(13))
    assert read_publication(settings, "flights") == flights(12)
