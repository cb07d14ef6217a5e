"""An owner that was stopped in the middle of a commit and comes back: its commit and its publication are refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from unittest.mock import Mock

import pytest
from test_reading_publication import flights
from test_table_commits import file, spec

from include.ground.app_ids import add_check, remove_check
from include.ground.delta_log import LOG
from include.ground.paths import bronze_path
from include.ground.settings import Settings
from include.read.publication import fence_publication, publish, read_publication
from include.state.lease import LeaseLost
from spark_jobs.stream.driver_loop import DriverLoop
from spark_jobs.stream.preflight import fence_earlier_owner
from spark_jobs.tables.commit_log import UNFINISHED, claim_tables, take_over_tables
from spark_jobs.tables.delta_table import OwnershipLost, Table


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


def test_driver_that_has_lost_its_lease_ends_before_the_next_run(settings: Settings) -> None:
    lease, run = Mock(location="leases/flights", **{"is_held.side_effect": [True, False]}), Mock()
    loop = DriverLoop(Mock(settings=settings), Mock(), lease, Mock(), Event())
    loop._execute_request = loop.keep_up = Mock()  # type: ignore[method-assign]
    loop.advance = run  # type: ignore[method-assign]
    run.side_effect = [True, AssertionError("a run without the lease")]
    with pytest.raises(LeaseLost):
        loop.run()
    assert run.call_count == 1


def unfinished(table: Table) -> list[Path]:
    return [path for path in (table.spec.path / LOG).iterdir() if path.name.endswith(".tmp")]


def test_unfinished_commit_of_a_crash_is_removed_when_the_table_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(spec(tmp_path))
    table.commit("app", 0, {}, [file("one")])
    with monkeypatch.context() as killed:
        killed.setattr(os, "link", Mock(side_effect=KeyboardInterrupt))
        killed.setattr(Path, "unlink", Mock())
        with pytest.raises(KeyboardInterrupt):
            table.commit("app", 1, {}, [file("two")])
    assert len(unfinished(table)) == 1
    take_over_tables([table.spec.path, tmp_path / "no table yet"], 2, leases_expire=False)
    assert (unfinished(table), Table(spec(tmp_path)).version) == ([], 1)


@pytest.mark.parametrize("leases_expire", [False, True])
def test_commit_that_a_new_owner_interrupts_is_refused_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leases_expire: bool
) -> None:
    """Without the owner's lease, a reload would make it current again."""
    earlier, link = Table(spec(tmp_path)), os.link

    def link_too_late(content: Path, path: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        take_over_tables([earlier.spec.path], 2, leases_expire=leases_expire)
        Table(spec(tmp_path)).commit("app", 0, {}, [file("other")])
        link(content, path)

    monkeypatch.setattr(os, "link", link_too_late)
    for _ in range(2):
        with pytest.raises(OwnershipLost):
            earlier.commit("app", 0, {}, [file("one")])
    owner = Table(spec(tmp_path))
    assert ([each.path for each in owner.files()], unfinished(owner)) == ([file("other").path], [])


def test_bronze_is_taken_over_when_a_driver_starts(settings: Settings) -> None:
    log = bronze_path(settings, "flights") / LOG
    log.mkdir(parents=True)
    left = log / UNFINISHED.replace("*", "12-3a")
    left.write_text("{")
    fence_earlier_owner(settings, "flights", 2)
    assert not left.exists()
